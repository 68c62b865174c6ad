// Package catalog lists the scenarios: what each is called, what it proves, and
// which test runs it.
package catalog

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Scenario is one entry of the list.
type Scenario struct {
	Name   string `json:"name"`   // as users write it
	Test   string `json:"test"`   // the Go test that runs it
	Proves string `json:"proves"` // one sentence, lower case, no period
	Short  bool   `json:"short"`  // part of every test run
	// Nodes says that it reaches into the lab's nodes, which a cluster that is
	// only known by its kubeconfig does not allow.
	Nodes bool `json:"needsNodes"`
}

// All lists the scenarios, the one that shows most first.
func All() []Scenario {
	return []Scenario{
		{
			Name: "training", Test: "TestTraining", Short: true, Nodes: true,
			Proves: "a GPU fails in the middle of a training job, and the job ends with the same bits as if it had not",
		},
		{
			Name: "basic", Test: "TestBasic", Short: true, Nodes: true,
			Proves: "a Pod gets the GPU that its claim promises, and gives everything back when it goes",
		},
		{
			Name: "shared-claim", Test: "TestSharedClaim", Short: true, Nodes: true,
			Proves: "two Pods share the GPU of one claim, which is unprepared only after the last of them",
		},
		{
			Name: "pending", Test: "TestPending", Short: true,
			Proves: "a Pod that asks for more GPUs than a node has stays pending and says why, and starts nothing",
		},
		{
			Name: "driver-restart", Test: "TestDriverRestart", Short: true, Nodes: true,
			Proves: "a driver that is replaced between prepare and unprepare knows what its predecessor prepared",
		},
		{
			Name: "connections", Test: "TestConnections", Short: true,
			Proves: "a lazy connection to a plugin fails in four ways in which an eager one does not (a model, on sockets)",
		},
		{
			Name: "kubelet-restart", Test: "TestKubeletRestart", Nodes: true,
			Proves: "a kubelet that restarts leaves a running Pod and its GPU alone, and can still unprepare",
		},
		{
			Name: "config", Test: "TestConfig", Short: true, Nodes: true,
			Proves: "a claim's configuration reaches the GPU and its programs, and a wrong one is refused when it is written",
		},
		{
			Name: "requests", Test: "TestRequests", Short: true, Nodes: true,
			Proves: "alternatives, resource names and admin access all lead a program to the GPU that it was given",
		},
		{
			Name: "shared-gpu", Test: "TestSharedGPU", Short: true, Nodes: true,
			Proves: "claims have parts of one shared GPU's memory, as many as fit (needs a GPU that is shared)",
		},
		{
			Name: "exercises", Test: "TestExercises", Short: true, Nodes: true,
			Proves: "an exercise says what is missing, its solution passes, and a reset begins it anew",
		},
		{
			Name: "probes", Test: "TestProbes", Short: true,
			Proves: "lab/probe comes to the kubelet's verdicts: each kind of probe and handler, each threshold, each way to fail",
		},
		{
			Name: "partitions", Test: "TestPartitions", Short: true, Nodes: true,
			Proves: "claims have partitions of one GPU in MIG mode, and a fault of the GPU reaches all of them (needs a GPU in MIG mode)",
		},
		{
			Name: "gpu-faults", Test: "TestGPUFaults", Nodes: true,
			Proves: "what is wrong with a GPU reaches the Pod's status, keeps new Pods away, and is over when it is over",
		},
		{
			Name: "gpu-evictions", Test: "TestGPUEvictions", Nodes: true,
			Proves: "fatal faults of a GPU evict, corrected errors do not, leaks keep Pods away, what flaps does so once",
		},
		{
			Name: "driver-faults", Test: "TestDriverFaults", Nodes: true,
			Proves: "whatever goes wrong while the driver prepares, the kubelet's next call finds the node whole",
		},
		{
			Name: "unprepare-faults", Test: "TestUnprepareFaults", Nodes: true,
			Proves: "a claim is held until it is unprepared, whatever keeps the driver from it",
		},
		{
			Name: "driver-streams", Test: "TestDriverStreams", Nodes: true,
			Proves: "a driver whose connections to the kubelet go wrong is found out, and comes back by itself",
		},
		{
			Name: "node-faults", Test: "TestNodeFaults", Nodes: true,
			Proves: "what happens to a node's kubelet, container runtime and network leaves a running Pod and its GPU alone",
		},
		{
			Name: "node-reboot", Test: "TestNodeReboot", Nodes: true,
			Proves: "after a reboot of its node a Pod gets the same GPU again, although its CDI spec was lost",
		},
		{
			Name: "network-attached", Test: "TestNetworkAttached", Short: true, Nodes: true,
			Proves: "a GPU that belongs to no node is attached to the one that the scheduler chose before its Pod starts, and detached afterwards",
		},
		{
			Name: "recovery", Test: "TestRecovery", Short: true, Nodes: true,
			Proves: "the controller resets a broken GPU that nobody uses, and gives up when the fault keeps coming back",
		},
		{
			Name: "lost-claim", Test: "TestLostClaim", Nodes: true,
			Proves: "the driver gives back the GPU of a claim that vanished behind the kubelet's back",
		},
		{
			Name: "churn", Test: "TestChurn", Nodes: true,
			Proves: "Pods come and go while the driver is killed fifty times, and every Pod runs",
		},
		{
			Name: "speed", Test: "TestSpeed", Nodes: true,
			Proves: "the driver takes hardly longer than a plugin that does nothing (needs twelve GPUs on a node)",
		},
		{
			Name: "soak", Test: "TestSoak", Nodes: true,
			Proves: "the driver stays as it is while Pods come and go for ten minutes ($DRA_LAB_SOAK for another time)",
		},
	}
}

// Find returns the scenarios of these names, in the order of the names; without
// names, all.
func Find(names []string) ([]Scenario, error) {
	if len(names) == 0 {
		return All(), nil
	}
	all := All()
	known := make([]string, len(all))
	for i, s := range all {
		known[i] = s.Name
	}
	var found []Scenario
	for _, name := range names {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fmt.Errorf("unknown scenario %q, have %s", name, strings.Join(known, ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

// Pattern is the value of -test.run that runs these scenarios and nothing else.
func Pattern(chosen []Scenario) string {
	var tests []string
	for _, s := range chosen {
		tests = append(tests, s.Test)
	}
	return "^(" + strings.Join(tests, "|") + ")$"
}

// WriteText writes the list for people.
func WriteText(w io.Writer, list []Scenario) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tSHORT\tPROVES THAT")
	for _, s := range list {
		short := "no"
		if s.Short {
			short = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", s.Name, short, s.Proves)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write scenarios: %w", err)
	}
	return nil
}
