package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/lab/install"
)

// cdiDirectory is in memory: a reboot empties it.
const cdiDirectory = "/var/run/cdi"

func lostCDISpec() Reproduction {
	return Reproduction{
		ID: "141433", Title: "after a reboot of the node a container cannot be created: its driver does not write the CDI spec again",
		Links:      []string{issue("141433")},
		Bad:        []string{"v1.37.2"},
		Observable: "CreateContainerError with a driver that writes its CDI spec at the first prepare only; with ours the container comes back",
		Note:       "a fault of a driver, whatever the kubelet: both drivers are on the same one",
		Bound:      3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			const kind, spec = "u141433.lab.example/gpu", cdiDirectory + "/u141433.json"
			s.removeLater(spec)
			var forgetful *Driver
			var written atomic.Bool
			forgetful, err = s.StartDriver(ctx, "", plugintest.Config{Prepare: func(ctx context.Context, _ *drav1.Claim) ([]*drav1.Device, error) {
				if !written.Load() {
					if err := s.writeCDISpec(ctx, spec, kind); err != nil {
						return nil, err
					}
					written.Store(true)
				}
				device := forgetful.Device()
				device.CdiDeviceIds = []string{kind + "=0"}
				return []*drav1.Device{device}, nil
			}})
			if err != nil {
				return f, err
			}
			if err := s.install(ctx); err != nil {
				return f, err
			}
			ours := &Driver{Name: api.DriverName, side: s}
			before := map[string]string{} // IDs of containers
			for pod, d := range map[string]*Driver{"forgetful": forgetful, "ours": ours} {
				if _, err := s.Claim(ctx, pod, d); err != nil {
					return f, err
				}
				if _, err := s.Pod(ctx, pod, byName(pod)); err != nil {
					return f, err
				}
			}
			for _, pod := range []string{"forgetful", "ours"} {
				if err := s.AwaitPod(ctx, pod, "to run", func(p *corev1.Pod) bool {
					before[pod] = containerID(p)
					return running(p)
				}); err != nil {
					return f, err
				}
			}
			if err := s.addCDISpecs(ctx, &f, "both Pods run"); err != nil {
				return f, err
			}
			if err := s.Node.Restart(ctx); err != nil {
				return f, err
			}
			restarted := time.Now()
			back := func(pod string) func(*corev1.Pod) bool {
				return func(p *corev1.Pod) bool { return running(p) && containerID(p) != "" && containerID(p) != before[pod] }
			}
			// Left alone, the kubelet tries again after a minute or more.
			if err := s.AwaitPoked(ctx, "ours", "to run again after the reboot", back("ours")); err != nil {
				return f, err
			}
			f.add("our driver: its Pod's container runs again %.0f s after the reboot", time.Since(restarted).Seconds())
			var message string
			if err := s.AwaitPoked(ctx, "forgetful", "to run again or to fail after the reboot", func(p *corev1.Pod) bool {
				message = createError(p)
				return message != "" || back("forgetful")(p)
			}); err != nil {
				return f, err
			}
			f.Present = message != ""
			if f.Present {
				f.add("driver that writes its spec once: CreateContainerError %.0f s after the reboot, prepared %d times: %s",
					time.Since(restarted).Seconds(), forgetful.Prepares(), message)
			} else {
				f.add("driver that writes its spec once: its Pod's container runs again %.0f s after the reboot", time.Since(restarted).Seconds())
			}
			err = s.addCDISpecs(ctx, &f, "after the reboot")
			return f, err
		},
	}
}

// writeCDISpec writes the spec of one CDI device, 0, whose kind is given.
func (s *Side) writeCDISpec(ctx context.Context, name, kind string) error {
	spec := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":%q,"devices":[{"name":"0","containerEdits":{"env":["REPRODUCTION=%s"]}}]}`, kind, s.id)
	return s.Node.WriteFile(ctx, name, []byte(spec), 0o644)
}

// removeLater has a file on the node removed when the reproduction ends.
func (s *Side) removeLater(name string) {
	s.undo = append(s.undo, func(ctx context.Context) error {
		_, err := s.Node.Exec(ctx, nil, "rm", "-f", name)
		return err
	})
}

// addCDISpecs adds to the evidence which CDI specs the node has.
func (s *Side) addCDISpecs(ctx context.Context, f *Finding, when string) error {
	out, err := s.Node.Exec(ctx, nil, "ls", cdiDirectory)
	if err != nil {
		return fmt.Errorf("list CDI specs: %w", err)
	}
	f.add("%s, %s has: %s", when, cdiDirectory, strings.Join(strings.Fields(string(out)), ", "))
	return nil
}

func containerID(p *corev1.Pod) string {
	if p == nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
		return ""
	}
	return p.Status.ContainerStatuses[0].ContainerID
}

// createError is why the Pod's container cannot be created, or "".
func createError(p *corev1.Pod) string {
	if p != nil {
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && w.Reason == "CreateContainerError" {
				return w.Message
			}
		}
	}
	return ""
}

// install puts the lab's own driver onto the cluster, until the reproduction
// ends. One that somebody else has put there stays as it is.
func (s *Side) install(ctx context.Context) error {
	namespaces := s.Client.CoreV1().Namespaces()
	found, err := namespaces.Get(ctx, api.Namespace, metav1.GetOptions{})
	switch {
	case err == nil && found.Labels[sideLabel] == "":
		return fmt.Errorf("install the lab's driver: lab %q has it already, and it would be removed afterwards", s.lab.Name())
	case err == nil: // a run was killed
		if err := s.uninstall(ctx); err != nil {
			return err
		}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look at namespace %q: %w", api.Namespace, err)
	}
	if _, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: api.Namespace, Labels: map[string]string{sideLabel: "u" + s.id},
	}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %q: %w", api.Namespace, err)
	}
	s.undo = append(s.undo, s.uninstall)
	return install.Plainly(ctx, s.lab, install.Options{}, os.Stderr)
}

// uninstall removes from the cluster what install brought, except for images.
func (s *Side) uninstall(ctx context.Context) error {
	// The drivers end with it, in order.
	if err := s.removeNamespace(ctx, api.Namespace); err != nil {
		return err
	}
	of := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=dra-lab"}
	slices := metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + api.DriverName}
	all := errors.Join(
		s.Client.RbacV1().ClusterRoles().DeleteCollection(ctx, metav1.DeleteOptions{}, of),
		s.Client.RbacV1().ClusterRoleBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, of),
		s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, of),
		s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, of),
		s.Client.ResourceV1().DeviceClasses().DeleteCollection(ctx, metav1.DeleteOptions{}, of),
		s.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, slices),
	)
	nodes, err := s.lab.Nodes(ctx)
	if err != nil {
		return errors.Join(all, err)
	}
	unlabel := fmt.Appendf(nil, `{"metadata":{"labels":{"%s/gpus":null}}}`, api.DriverName)
	for _, n := range nodes {
		_, err := s.Client.CoreV1().Nodes().Patch(ctx, n.Name(), types.MergePatchType, unlabel, metav1.PatchOptions{})
		_, removed := n.Exec(ctx, nil, "rm", "-rf", api.PluginDir, api.HardwareDir)
		all = errors.Join(all, err, removed)
	}
	if all != nil {
		return fmt.Errorf("remove the lab's driver: %w", all)
	}
	return nil
}
