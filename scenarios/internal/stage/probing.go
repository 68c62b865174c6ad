package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/plugin"
	"github.com/dra-lab/dra-lab/lab/probe"
	"github.com/dra-lab/dra-lab/lab/probe/reach"
)

// Kubelet is a node, by what runs it.
type Kubelet struct{ Node, Version string }

// Kubelets returns a node that takes Pods for each version of the kubelet that
// the cluster has, oldest name first.
func (s *Stage) Kubelets(ctx context.Context) ([]Kubelet, error) {
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var found []Kubelet
	for _, n := range list.Items {
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		version := n.Status.NodeInfo.KubeletVersion
		known := slices.ContainsFunc(found, func(k Kubelet) bool { return k.Version == version })
		if ready && !known && !n.Spec.Unschedulable && !slices.ContainsFunc(n.Spec.Taints, keepsOff) {
			found = append(found, Kubelet{n.Name, version})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find a node that takes Pods: none of %d does", len(list.Items))
	}
	slices.SortFunc(found, func(a, b Kubelet) int { return cmp.Compare(a.Version, b.Version) })
	return found, nil
}

func keepsOff(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// Prober returns what runs the probes of Pods on a node: in the node where that
// is in reach, else through the API server. The program that uses it has to be
// the agent when it is started with reach.AgentVerb. The caller has to call end.
func (s *Stage) Prober(ctx context.Context, node string) (prober probe.Prober, end func() error, err error) {
	if s.lab == nil {
		prober, err := reach.PortForward(s.config)
		return prober, func() error { return nil }, err
	}
	engine, err := host.FindEngine(ctx)
	if err != nil {
		return nil, nil, err
	}
	agent := reach.NewAgent(func(ctx context.Context) (*exec.Cmd, error) {
		relay := plugin.NewRelay(plugin.InNode(engine, node), "")
		cmd, err := relay.Program(ctx, reach.AgentVerb)
		return cmd, errors.Join(err, relay.Close())
	})
	if err := agent.Start(); err != nil {
		return nil, nil, errors.Join(err, agent.Close())
	}
	return agent, agent.Close, nil
}
