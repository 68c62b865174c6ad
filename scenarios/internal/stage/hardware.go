package stage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/fault"
	"github.com/dra-lab/dra-lab/lab/timeline"
)

// driverTime is the patience for a driver Pod's replacement.
const driverTime = time.Minute

// GPU is one of the lab's GPUs.
type GPU struct {
	Node string
	Name string // "gpu-0"
}

func (g GPU) String() string { return g.Name + " of " + g.Node }

// Break gives the GPU a fault and returns the event of the hardware: its time
// is when the fault was there, not when the command came back.
func (s *Stage) Break(ctx context.Context, t *testing.T, g GPU, f api.Fault) timeline.Event {
	t.Helper()
	f.ID = s.faultID()
	what := f.Kind
	if f.Code != 0 {
		what += " " + strconv.Itoa(f.Code)
	}
	s.Recorder.Note(timeline.Event{
		Component: timeline.User, Kind: timeline.FaultAsked, Node: g.Node, Device: g.Name, Detail: what,
		Text: fmt.Sprintf("lab fault inject %s on %s", what, g),
	})
	if err := fault.Inject(ctx, s.lab, fault.Target{Node: g.Node, Device: g.Name}, f); err != nil {
		t.Fatal(err)
	}
	at, err := s.faultTime(ctx, g)
	if err != nil {
		t.Fatal(err)
	}
	happened := timeline.Event{
		Time: at, Component: timeline.GPU, Kind: timeline.FaultInjected, Node: g.Node, Device: g.Name, Detail: what,
		Text: fmt.Sprintf("%s: the simulated hardware has the fault %s", g.Name, what),
	}
	s.Recorder.Note(happened)
	return happened
}

// Mend takes the scenario's faults away.
func (s *Stage) Mend(ctx context.Context, t *testing.T) timeline.Event {
	t.Helper()
	happened := timeline.Event{Time: time.Now(), Component: timeline.User, Kind: timeline.FaultCleared, Text: "lab fault clear"}
	s.Recorder.Note(happened)
	if _, err := fault.Clear(ctx, s.lab, fault.Filter{ID: s.faultID()}); err != nil {
		t.Fatal(err)
	}
	return happened
}

// faultTime is when the GPU's faults were last written.
func (s *Stage) faultTime(ctx context.Context, g GPU) (time.Time, error) {
	file := path.Join(api.HardwareDir, g.Name, api.FaultsName)
	out, err := s.OnNode(ctx, g.Node, "stat", "--format=%.9Y", file)
	if err != nil {
		return time.Time{}, err
	}
	at, err := parseTime(strings.TrimSpace(out))
	if err != nil {
		return time.Time{}, fmt.Errorf("read time of %s on node %q: %w", file, g.Node, err)
	}
	return at, nil
}

// parseTime reads seconds since 1970 with nine decimals.
func parseTime(text string) (time.Time, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	seconds, err1 := strconv.ParseInt(whole, 10, 64)
	nanoseconds, err2 := strconv.ParseInt(fraction, 10, 64)
	if err1 != nil || err2 != nil || len(fraction) != 9 {
		return time.Time{}, fmt.Errorf("parse time %q: want seconds with nine decimals", text)
	}
	return time.Unix(seconds, nanoseconds), nil
}

// OnNode runs a command on a node and returns its output.
func (s *Stage) OnNode(ctx context.Context, name string, argv ...string) (string, error) {
	node, err := s.node(ctx, name)
	if err != nil {
		return "", err
	}
	out, err := node.Exec(ctx, nil, argv...)
	return string(out), err
}

// WriteOnNode writes a file of a node, whole.
func (s *Stage) WriteOnNode(ctx context.Context, name, file string, data []byte, mode fs.FileMode) error {
	node, err := s.node(ctx, name)
	if err != nil {
		return err
	}
	return node.WriteFile(ctx, file, data, mode)
}

func (s *Stage) node(ctx context.Context, name string) (cluster.Node, error) {
	nodes, err := s.lab.Nodes(ctx)
	if err != nil {
		return cluster.Node{}, err
	}
	for _, n := range nodes {
		if n.Name() == name {
			return n, nil
		}
	}
	return cluster.Node{}, fmt.Errorf("find node %q: not among the %d nodes of lab %q", name, len(nodes), s.lab.Name())
}

// DriverPod is the driver's ready Pod on a node.
func (s *Stage) DriverPod(ctx context.Context, node string) (corev1.Pod, error) {
	list, err := s.Client.CoreV1().Pods(api.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return corev1.Pod{}, fmt.Errorf("find driver on node %q: %w", node, err)
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Labels["app.kubernetes.io/name"] == api.AppLabel && isReady(p) {
			return p, nil
		}
	}
	return corev1.Pod{}, fmt.Errorf("find driver on node %q: no ready Pod", node)
}

func isReady(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// askDriver gets a path of the driver on a node.
func (s *Stage) askDriver(ctx context.Context, node, path string) ([]byte, error) {
	pod, err := s.DriverPod(ctx, node)
	if err != nil {
		return nil, err
	}
	data, err := s.Client.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, "8080", path, nil).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask driver on node %q: %w", node, err)
	}
	return data, nil
}

// DriverStatus is what the driver on a node knows now.
func (s *Stage) DriverStatus(ctx context.Context, node string) (api.DriverStatus, error) {
	data, err := s.askDriver(ctx, node, api.PathStatus)
	if err != nil {
		return api.DriverStatus{}, err
	}
	status, err := api.ParseDriverStatus(data)
	if err == nil && status.Node != node {
		// Another cluster with the same Pod addresses on the same network.
		err = fmt.Errorf("ask driver on node %q: the driver of node %q answered", node, status.Node)
	}
	return status, err
}

// Memory is how many bytes are in use on each GPU, as the drivers read them.
func (s *Stage) Memory(ctx context.Context) (map[GPU]uint64, error) {
	gpus, err := s.GPUs(ctx)
	if err != nil {
		return nil, err
	}
	used := map[GPU]uint64{}
	for _, g := range gpus {
		if _, known := used[g]; known {
			continue
		}
		status, err := s.DriverStatus(ctx, g.Node)
		if err != nil {
			return nil, err
		}
		for _, d := range status.Devices {
			used[GPU{Node: g.Node, Name: d.Name}] = d.UsedBytes
		}
	}
	return used, nil
}

// findTraces lists what a node still has of the claim: its CDI spec, its entry
// in the driver's checkpoint, and what the driver itself says.
func (s *Stage) findTraces(ctx context.Context, node, claimUID string) ([]string, error) {
	var traces []string
	out, err := s.OnNode(ctx, node, "find", api.CDIDir, "-name", "*"+claimUID+"*")
	if err != nil {
		return nil, err
	}
	for file := range strings.FieldsSeq(out) {
		traces = append(traces, "CDI spec "+file)
	}
	base := path.Join(api.PluginDir, api.CheckpointName)
	files, err := s.OnNode(ctx, node, "cat", base+"-a.json", base+"-b.json")
	if err != nil {
		return nil, err
	}
	checkpoint, err := newestCheckpoint(files)
	if err != nil {
		return nil, fmt.Errorf("read the driver's checkpoint on node %s: %w", node, err)
	}
	if strings.Contains(checkpoint, claimUID) {
		traces = append(traces, "an entry in the driver's checkpoint")
	}
	status, err := s.DriverStatus(ctx, node)
	if err != nil {
		return nil, err
	}
	for _, c := range status.Claims {
		if c.UID == claimUID {
			traces = append(traces, "the driver counts it as prepared")
		}
	}
	return traces, nil
}

// newestCheckpoint returns the content that counts of the checkpoint's two files,
// one after the other: that with the higher sequence. The driver writes them by
// turns, so the other one still has what is gone. One that was never written is
// empty.
func newestCheckpoint(files string) (string, error) {
	var newest json.RawMessage
	last := uint64(0)
	decoder := json.NewDecoder(strings.NewReader(files))
	for {
		var versions map[string]struct {
			Sequence uint64          `json:"sequence"`
			Data     json.RawMessage `json:"data"`
		}
		switch err := decoder.Decode(&versions); {
		case errors.Is(err, io.EOF) && newest == nil:
			return "", errors.New("neither file has a document")
		case errors.Is(err, io.EOF):
			return string(newest), nil
		case err != nil:
			return "", err
		}
		for _, v := range versions {
			if v.Sequence > last {
				last, newest = v.Sequence, v.Data
			}
		}
	}
}

// GPUs are all GPUs that the driver publishes, without the partitions of those in
// MIG mode.
func (s *Stage) GPUs(ctx context.Context) ([]GPU, error) {
	var all []GPU
	err := s.EachDevice(ctx, func(g GPU, d resourcev1.Device) {
		if t := d.Attributes[api.AttributeType].StringValue; t == nil || *t != api.TypeMIG {
			all = append(all, g)
		}
	})
	return all, err
}

// UUID is what the GPU says it is.
func (s *Stage) UUID(ctx context.Context, g GPU) (string, error) {
	uuid := ""
	err := s.EachDevice(ctx, func(other GPU, d resourcev1.Device) {
		if a := d.Attributes[api.AttributeUUID]; other == g && a.StringValue != nil {
			uuid = *a.StringValue
		}
	})
	if err == nil && uuid == "" {
		err = fmt.Errorf("find UUID of %s: not published", g)
	}
	return uuid, err
}

// Taints are those that the GPU is published with.
func (s *Stage) Taints(ctx context.Context, g GPU) ([]resourcev1.DeviceTaint, error) {
	var all []resourcev1.DeviceTaint
	err := s.EachDevice(ctx, func(other GPU, d resourcev1.Device) {
		if other == g {
			all = append(all, d.Taints...)
		}
	})
	return all, err
}

// EachDevice visits every device that the driver publishes.
func (s *Stage) EachDevice(ctx context.Context, do func(GPU, resourcev1.Device)) error {
	list, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + api.DriverName,
	})
	if err != nil {
		return fmt.Errorf("list GPUs: %w", err)
	}
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			do(GPU{Node: slice.Spec.Pool.Name, Name: d.Name}, d)
		}
	}
	return nil
}

// Note records what the scenario does itself.
func (s *Stage) Note(what, node string) timeline.Event {
	e := timeline.Event{Time: time.Now(), Component: timeline.User, Kind: timeline.Action, Node: node, Text: what}
	s.Recorder.Note(e)
	return e
}

// Remark explains to whoever reads the timeline.
func (s *Stage) Remark(format string, args ...any) {
	s.Recorder.Note(timeline.Event{Component: timeline.Lab, Kind: timeline.Remark, Text: "note: " + fmt.Sprintf(format, args...)})
}

// AwaitDriver waits until another driver Pod than the one with this UID is
// ready on the node.
func (s *Stage) AwaitDriver(ctx context.Context, node, notUID string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, driverTime, fmt.Errorf("not within %s", driverTime))
	defer cancel()
	pods := s.Client.CoreV1().Pods(api.Namespace)
	isNew := func(object any) bool {
		p, ok := object.(*corev1.Pod)
		return ok && string(p.UID) != notUID && p.DeletionTimestamp == nil && p.Labels["app.kubernetes.io/name"] == api.AppLabel && isReady(*p)
	}
	_, err := watchtools.UntilWithSync(ctx, listWatch("spec.nodeName="+node, pods.List, pods.Watch), &corev1.Pod{},
		func(store cache.Store) (bool, error) { return slices.ContainsFunc(store.List(), isNew), nil },
		func(e watch.Event) (bool, error) { return e.Type != watch.Deleted && isNew(e.Object), nil })
	if err != nil {
		return fmt.Errorf("wait for the new driver on node %q: %w", node, cmp.Or(context.Cause(ctx), err))
	}
	return nil
}
