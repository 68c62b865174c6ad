package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/plugin"
	"github.com/dra-lab/dra-lab/lab/probe"
	"github.com/dra-lab/dra-lab/lab/probe/reach"
)

// statusNotReady is the exit status of "lab probe" for a Pod that is not ready:
// the work is done, and this is its result.
const statusNotReady = 3

// What bounds the time of "lab probe" when the user does not.
const (
	probeGrace = 30 * time.Second // for containers to run at all
	probeMost  = 10 * time.Minute
)

// maxProbeEvents bounds the attempts that are kept for -o json: the last ones.
const maxProbeEvents = 10_000

type probeOptions struct {
	name, kubeconfig, namespace, container, format string
	once                                           bool
	timeout                                        time.Duration
}

func newProbe(l *lab) *cobra.Command {
	var o probeOptions
	cmd := &cobra.Command{
		Use:   "probe POD",
		Short: "Run a Pod's probes as the kubelet does, and say why it is or is not ready",
		Long: `Runs a Pod's startup, readiness and liveness probes as the kubelet does, prints each
attempt, and says why the Pod is or is not ready, and where that differs from the
kubelet's word. It ends when all thresholds are reached and the kubelet has had as long.

The probes are run in the Pod's node, over its network and by its runtime. With
--kubeconfig they go through the API server's port-forward and exec, which reach localhost
in the Pod instead of its IP. Nothing is changed, and nothing restarted.

Exit status: 0 the Pod is ready, 3 it is not, 1 it could not be found out, 2 wrong usage.`,
		Example: `  lab probe web -n shop
  lab probe web -c server --once
  lab probe web --kubeconfig ~/.kube/config -o json`,
		Args: oneArgument("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(o.format, "text", "json"); err != nil {
				return err
			}
			if o.timeout < 0 {
				return wrongUsage(cmd, fmt.Errorf("--timeout is %s, want more than 0", o.timeout))
			}
			return l.probe(cmd.Context(), o, args[0])
		},
	}
	nameFlag(cmd, &o.name)
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "a Pod of the cluster of this kubeconfig `file` instead of a lab's")
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "default", "`namespace` of the Pod")
	cmd.Flags().StringVarP(&o.container, "container", "c", "", "only this `container`")
	cmd.Flags().BoolVar(&o.once, "once", false, "try each probe once and now, without delays, thresholds and the startup gate")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "end after this `time` at most, settled or not (default: what the probes' thresholds take, up to 10m)")
	formatFlag(cmd, &o.format)
	return cmd
}

// probeReport is what -o json prints.
type probeReport struct {
	Way      string         `json:"way"`
	Attempts []probe.Event  `json:"attempts"`
	Verdict  *probe.Verdict `json:"verdict,omitempty"` // none with --once
	Ready    bool           `json:"ready"`
}

func (l *lab) probe(ctx context.Context, o probeOptions, name string) (err error) {
	klog.SetLogger(logr.Discard()) // client-go logs ends of connections, which answers tell about
	access, err := l.openPods(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.close()) }()
	pod, err := access.client.CoreV1().Pods(o.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		err = fmt.Errorf("find Pod %s/%s: %w", o.namespace, name, err)
		if apierrors.IsNotFound(err) {
			err = ui.WithHint(err, "-n, the namespace of the Pod")
		}
		return err
	}
	access.moved(pod)
	agent, err := reach.UserAgent(ctx, access.client, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	l.ui.Info("probing Pod %s/%s %s", pod.Namespace, pod.Name, access.way)
	if pod.Spec.NodeName != "" {
		if err := access.start(); err != nil {
			return err
		}
		// Its status may have changed meanwhile.
		if pod, err = access.client.CoreV1().Pods(o.namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("find Pod %s/%s: %w", o.namespace, name, err)
		}
	}
	report := probeReport{Way: access.way, Attempts: []probe.Event{}}
	header := false
	session, err := probe.NewSession(pod, probe.Config{
		Prober: access.prober, UserAgent: agent, Container: o.container,
		Emit: func(e probe.Event) {
			if o.format == "json" {
				report.Attempts = append(report.Attempts[max(0, len(report.Attempts)+1-maxProbeEvents):], e)
				return
			}
			if !header {
				fmt.Fprint(l.ui.Out(), probe.HeaderText())
				header = true
			}
			_ = e.WriteText(l.ui.Out()) // a reader that went away ends the process by SIGPIPE
		},
	})
	if err != nil {
		return ui.WithHint(err, "leave -c out for all containers")
	}
	if o.once {
		report.Ready = session.Once(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	} else {
		verdict, err := settle(ctx, session, access, pod, o.timeout)
		if err != nil {
			return err
		}
		report.Verdict, report.Ready = &verdict, verdict.Ready
	}
	switch {
	case o.format == "json":
		err = printJSON(l.ui.Out(), report)
	case report.Verdict != nil:
		err = report.Verdict.WriteText(l.ui.Out())
	}
	if err == nil && !report.Ready {
		err = ui.Told(errors.New("the Pod is not ready"), statusNotReady)
	}
	return err
}

// errSettled is the cause of the end of a session that knows enough.
var errSettled = errors.New("settled")

// settle runs the session until the verdict is settled and the kubelet's is the
// same, or has had time to be; until the time is over; or until ctx ends. All of
// these end with a verdict.
func settle(ctx context.Context, s *probe.Session, access *podAccess, pod *corev1.Pod, timeout time.Duration) (probe.Verdict, error) {
	if timeout == 0 {
		timeout = min(s.Need(time.Now())+s.Patience()+probeGrace, probeMost)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(timeout, func() { cancel(errSettled) })
	defer limit.Stop()
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	running.Go(func() {
		cancel(reach.Follow(ctx, access.client, pod, func(now *corev1.Pod) {
			access.moved(now)
			s.Update(now)
		}))
	})
	var patience *time.Timer
	for ctx.Err() == nil {
		v := s.Verdict()
		switch {
		case !v.Settled:
			if patience != nil {
				patience.Stop()
				patience = nil
			}
		case len(v.Differences) == 0:
			cancel(errSettled)
		case patience == nil:
			patience = time.AfterFunc(s.Patience(), func() { cancel(errSettled) })
			defer patience.Stop()
		}
		select {
		case <-ctx.Done():
		case <-s.Changed():
		}
	}
	running.Wait()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSettled), errors.Is(cause, errInterrupted):
		return s.Verdict(), nil
	default:
		return probe.Verdict{}, cause
	}
}

// podAccess is how Pods are reached.
type podAccess struct {
	client kubernetes.Interface
	prober probe.Prober
	way    string // for people

	node  atomic.Pointer[string] // the name of the Pod's node, "" before it has one
	start func() error           // before a Pod that has a node is probed, so that its first probe need not wait
	close func() error
}

// moved notes where the Pod is.
func (a *podAccess) moved(pod *corev1.Pod) { a.node.Store(&pod.Spec.NodeName) }

// openPods reaches the Pods of a lab through its nodes, those of another cluster
// through its API server.
func (l *lab) openPods(ctx context.Context, o probeOptions) (*podAccess, error) {
	a := &podAccess{start: func() error { return nil }, close: func() error { return nil }}
	var config *rest.Config
	if o.kubeconfig != "" {
		if _, err := os.Stat(o.kubeconfig); err != nil {
			return nil, ui.UsageError(ui.WithHint(fmt.Errorf("read kubeconfig: %w", err), "leave --kubeconfig out for a Pod of a lab"))
		}
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
		if a.prober, err = reach.PortForward(config); err != nil {
			return nil, err
		}
		a.way = "through the API server's port-forward and exec"
		l.ui.Warn("answers may differ from the kubelet's: %s", reach.Difference)
	} else {
		c, engine, err := l.openOn(ctx, o.name)
		if err != nil {
			return nil, err
		}
		if config, err = c.RESTConfig(); err != nil {
			return nil, err
		}
		agent := reach.NewAgent(func(ctx context.Context) (*exec.Cmd, error) {
			relay := plugin.NewRelay(plugin.InNode(engine, *a.node.Load()), "")
			cmd, err := relay.Program(ctx, reach.AgentVerb)
			return cmd, errors.Join(err, relay.Close())
		})
		a.prober, a.start, a.close, a.way = agent, agent.Start, agent.Close, "from its node, as the kubelet does"
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the cluster: %w", err), a.close())
	}
	a.client = client
	return a, nil
}
