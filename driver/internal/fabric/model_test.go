package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/fabric"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

// server is as much of an API server as the controller needs: resource versions,
// conflicts, preconditions and finalizers.
type server struct {
	version int
	ops     map[string]*v1alpha1.DeviceOperation
	claims  map[types.UID]*resourceapi.ResourceClaim
	nodes   map[string]bool
}

func (s *server) next() string {
	s.version++
	return fmt.Sprint(s.version)
}

func resource() schema.GroupResource {
	return v1alpha1.GroupVersion().WithResource(v1alpha1.OperationResource).GroupResource()
}

func (s *server) NodeExists(_ context.Context, name string) (bool, error) { return s.nodes[name], nil }

func (s *server) CreateOperation(_ context.Context, op *v1alpha1.DeviceOperation) error {
	if s.ops[op.Name] != nil {
		return apierrors.NewAlreadyExists(resource(), op.Name)
	}
	op = op.DeepCopy()
	op.ResourceVersion, op.UID = s.next(), types.UID("op-"+s.next())
	op.CreationTimestamp = metav1.NewTime(clock)
	s.ops[op.Name] = op
	return nil
}

// current is the stored object if op was made of it.
func (s *server) current(op *v1alpha1.DeviceOperation) (*v1alpha1.DeviceOperation, error) {
	have := s.ops[op.Name]
	switch {
	case have == nil:
		return nil, apierrors.NewNotFound(resource(), op.Name)
	case have.ResourceVersion != op.ResourceVersion || have.UID != op.UID:
		return nil, apierrors.NewConflict(resource(), op.Name, errors.New("the object has been modified"))
	}
	return have.DeepCopy(), nil
}

func (s *server) UpdateOperation(_ context.Context, op *v1alpha1.DeviceOperation) error {
	have, err := s.current(op)
	if err != nil {
		return err
	}
	if op.Spec.Node != have.Spec.Node || op.Spec.Device != have.Spec.Device || op.Spec.Attempt < have.Spec.Attempt ||
		op.Spec.Action != have.Spec.Action && op.Spec.Attempt == have.Spec.Attempt {
		return apierrors.NewBadRequest("the schema forbids it")
	}
	have.Spec, have.Finalizers, have.ResourceVersion = op.DeepCopy().Spec, slices.Clone(op.Finalizers), s.next()
	s.ops[op.Name] = have
	s.finish(have)
	return nil
}

func (s *server) UpdateOperationStatus(_ context.Context, op *v1alpha1.DeviceOperation) error {
	have, err := s.current(op)
	if err != nil {
		return err
	}
	have.Status, have.ResourceVersion = op.DeepCopy().Status, s.next()
	s.ops[op.Name] = have
	return nil
}

func (s *server) DeleteOperation(_ context.Context, op *v1alpha1.DeviceOperation) error {
	have := s.ops[op.Name]
	switch {
	case have == nil:
		return apierrors.NewNotFound(resource(), op.Name)
	case have.UID != op.UID:
		return apierrors.NewConflict(resource(), op.Name, errors.New("another UID"))
	}
	s.remove(have)
	return nil
}

// remove is what kubectl delete does.
func (s *server) remove(op *v1alpha1.DeviceOperation) {
	op = op.DeepCopy()
	op.DeletionTimestamp, op.ResourceVersion = &metav1.Time{Time: clock}, s.next()
	s.ops[op.Name] = op
	s.finish(op)
}

func (s *server) finish(op *v1alpha1.DeviceOperation) {
	if op.DeletionTimestamp != nil && len(op.Finalizers) == 0 {
		delete(s.ops, op.Name)
	}
}

func (s *server) UpdateClaimStatus(_ context.Context, c *resourceapi.ResourceClaim) error {
	have := s.claims[c.UID]
	if have == nil || have.ResourceVersion != c.ResourceVersion {
		return apierrors.NewConflict(resource(), c.Name, errors.New("the object has been modified"))
	}
	s.put(c)
	return nil
}

func (s *server) put(c *resourceapi.ResourceClaim) {
	c = c.DeepCopy()
	c.ResourceVersion = s.next()
	s.claims[c.UID] = c
}

func (s *server) CreateTaintRule(context.Context, *resourceapi.DeviceTaintRule) error {
	return errors.New("nobody asks for it")
}

// snapshot is what a cache has. Stored objects are never changed, only replaced.
func (s *server) snapshot() fabric.State {
	return fabric.State{
		Operations: maps.Clone(s.ops), Nodes: maps.Clone(s.nodes), Claims: slices.Collect(maps.Values(s.claims)),
	}
}

// clock is the time of the one test that is here.
var clock = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // time is global

// world is a cluster: server, controller, and nodes whose slots are real.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	server  *server
	nodes   []string
	slots   map[string]*slots.Slots
	before  []fabric.State // older states, which a cache may still have
	calm    bool           // nothing goes wrong any more
	claims  int
	bound   map[types.UID]string // claims whose Pod is bound, with its node
	outcome map[string]int

	prepared map[types.UID]bool
}

const devices = 3

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 0)), nodes: []string{"one", "two", "three"},
		server: &server{ops: map[string]*v1alpha1.DeviceOperation{}, claims: map[types.UID]*resourceapi.ResourceClaim{}, nodes: map[string]bool{}},
		slots:  map[string]*slots.Slots{}, bound: map[types.UID]string{}, prepared: map[types.UID]bool{}, outcome: map[string]int{},
	}
	for _, n := range w.nodes {
		w.server.nodes[n] = true
		s, err := slots.Open(t.TempDir(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		w.slots[n] = s
	}
	return w
}

// unlucky says whether something goes wrong that does so once in n times.
func (w *world) unlucky(n int) bool { return !w.calm && w.rand.IntN(n) == 0 }

// control is one round of a controller, on news that may be old, and that may be
// cut off after any write.
func (w *world) control() {
	state := w.server.snapshot()
	if len(w.before) > 0 && w.unlucky(3) {
		state = w.before[w.rand.IntN(len(w.before))]
	}
	actions, _ := fabric.Decide(state, clock)
	for _, a := range actions {
		if w.unlucky(5) {
			w.outcome["controller killed"]++
			return
		}
		err := a.Do(w.t.Context(), w.server)
		if err != nil && w.calm && !apierrors.IsConflict(err) {
			w.t.Fatalf("%s: %v", a, err)
		}
		if op := a.Operation; err == nil && a.Verb == operation.Update && op.Spec.Action == v1alpha1.OperationAttach && op.Spec.Attempt > 3 {
			w.t.Fatalf("attempt %d at attaching %s", op.Spec.Attempt, op.Spec.Device)
		}
	}
}

// drive is a driver that carries out an order of its node, and may be killed
// before it says so.
func (w *world) drive(node string) {
	for _, name := range slices.Sorted(maps.Keys(w.server.ops)) {
		op := w.server.ops[name]
		if answered, _ := op.Done(); answered || op.Spec.Node != node {
			continue
		}
		var err error
		switch {
		case op.Spec.Action == v1alpha1.OperationAttach && (op.Spec.Device == "net-0" && !w.calm || w.unlucky(3)):
			err = errors.New("the switch says no")
		case op.Spec.Action == v1alpha1.OperationAttach:
			err = w.slots[node].Attach(w.t.Context(), slots.Attachment{Device: op.Spec.Device, ClaimUID: op.Spec.Claim.UID})
		default:
			err = w.slots[node].Detach(w.t.Context(), op.Spec.Device)
		}
		if w.unlucky(4) {
			w.outcome["driver killed"]++
			return
		}
		answer := op.DeepCopy()
		c := metav1.Condition{Type: v1alpha1.ConditionCompleted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded}
		if err != nil {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonFailed, err.Error()
		}
		answer.Status.ObservedAttempt, answer.Status.ObservedAt = op.Spec.Attempt, metav1.NewTime(clock)
		meta.SetStatusCondition(&answer.Status.Conditions, c)
		if err := w.server.UpdateOperationStatus(w.t.Context(), answer); err != nil && !apierrors.IsConflict(err) {
			w.t.Fatal(err)
		}
	}
}

// request makes a claim.
func (w *world) request() {
	w.claims++
	w.server.put(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: fmt.Sprint("c", w.claims), UID: types.UID(fmt.Sprint("uid-", w.claims)),
	}})
}

// schedule is the scheduler: it gives free devices to claims that have none,
// takes those away that cannot be attached, and binds Pods.
func (w *world) schedule() {
	taken := map[string]bool{}
	for _, c := range w.server.claims {
		if a := c.Status.Allocation; a != nil {
			taken[a.Devices.Results[0].Device] = true
		}
	}
	for _, d := range fabric.Resources(devices, w.server.ops).Pools[api.FabricPool].Slices[0].Devices {
		taken[d.Name] = taken[d.Name] || len(d.Taints) > 0
	}
	for _, uid := range slices.Sorted(maps.Keys(w.server.claims)) {
		c := w.server.claims[uid].DeepCopy()
		switch {
		case w.bound[uid] != "":
			w.prepare(c)
		case c.Status.Allocation == nil:
			for i := range devices {
				name := fabric.DeviceName(i)
				if taken[name] {
					continue
				}
				taken[name] = true
				c.Status.Allocation = allocation(name, w.nodes[w.rand.IntN(len(w.nodes))])
				w.server.put(c)
				break
			}
		case condition(c, api.ConditionAttachFailed):
			w.outcome["failed"]++
			c.Status.Allocation, c.Status.Devices = nil, nil
			w.server.put(c)
		case condition(c, api.ConditionAttached):
			w.bind(c)
		}
	}
}

func allocation(device, node string) *resourceapi.AllocationResult {
	return &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: api.FabricDriverName, Pool: api.FabricPool, Device: device,
			BindingConditions: []string{api.ConditionAttached}, BindingFailureConditions: []string{api.ConditionAttachFailed},
		}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
}

func condition(c *resourceapi.ResourceClaim, name string) bool {
	return len(c.Status.Devices) > 0 && meta.IsStatusConditionTrue(c.Status.Devices[0].Conditions, name)
}

func where(c *resourceapi.ResourceClaim) (device, node string) {
	a := c.Status.Allocation
	return a.Devices.Results[0].Device, a.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

func (w *world) bind(c *resourceapi.ResourceClaim) {
	_, w.bound[c.UID] = where(c)
	w.outcome["attached"]++
	w.prepare(c)
}

// prepare is the kubelet, which tries again. It has to unless the operation of
// the device was deleted by hand, or a controller did not know better: the device
// is never handed out then.
func (w *world) prepare(c *resourceapi.ResourceClaim) {
	device, node := where(c)
	_, err := w.slots[node].Prepare(w.t.Context(), string(c.UID), []cdi.Device{{Request: "gpu", Name: device, UUID: fabric.UUID(device)}})
	w.prepared[c.UID] = err == nil
	if err != nil {
		w.outcome["prepared late"]++
	}
}

// end deletes a claim, after the kubelet has unprepared it.
func (w *world) end(uid types.UID) {
	if node := w.bound[uid]; node != "" {
		if err := w.slots[node].Unprepare(w.t.Context(), string(uid)); err != nil {
			w.t.Fatal(err)
		}
		delete(w.bound, uid)
		delete(w.prepared, uid)
	}
	delete(w.server.claims, uid)
}

// check is what must hold at every moment.
func (w *world) check() {
	w.t.Helper()
	at := map[string]string{}
	for _, node := range w.nodes {
		all, err := w.slots[node].List()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, a := range all {
			if other := at[a.Device]; other != "" {
				w.t.Fatalf("%s is attached to nodes %s and %s", a.Device, other, node)
			}
			at[a.Device] = node
		}
	}
	for uid, node := range w.bound {
		if !w.prepared[uid] {
			continue
		}
		if device, want := where(w.server.claims[uid]); at[device] != want || node != want {
			w.t.Fatalf("claim %s is prepared on node %s with %s, which is at %q", uid, node, device, at[device])
		}
	}
}

func (w *world) step() {
	w.before = append(w.before, w.server.snapshot())
	if len(w.before) > 5 {
		w.before = w.before[1:]
	}
	switch w.rand.IntN(10) {
	case 0:
		if len(w.server.claims) < devices+2 {
			w.request()
		}
	case 1:
		if uids := slices.Sorted(maps.Keys(w.server.claims)); len(uids) > 0 {
			w.end(uids[w.rand.IntN(len(uids))])
		}
	case 2, 3:
		w.schedule()
	case 4, 5, 6:
		w.control()
	case 7, 8:
		w.drive(w.nodes[w.rand.IntN(len(w.nodes))])
	case 9:
		clock = clock.Add(time.Duration(w.rand.IntN(20)) * time.Second)
		if w.unlucky(20) && len(w.server.ops) > 0 {
			w.outcome["deleted by hand"]++
			names := slices.Sorted(maps.Keys(w.server.ops))
			w.server.remove(w.server.ops[names[w.rand.IntN(len(names))]])
		}
	}
	w.check()
}

// settle lets everybody finish.
func (w *world) settle(done func() bool) {
	w.t.Helper()
	w.calm = true
	for range 200 {
		if done() {
			return
		}
		w.schedule()
		w.control()
		for _, n := range w.nodes {
			w.drive(n)
		}
		w.check()
		clock = clock.Add(30 * time.Second)
	}
	w.t.Fatalf("never settles: %d claims, %d bound, operations %v", len(w.server.claims), len(w.bound), w.server.ops)
}

// Given a controller that works on old news and is killed between any two
// writes, drivers that fail and are killed before they answer, and claims that
// come and go, then no device is ever on two nodes, none is detached from a claim
// that is prepared with it, every claim gets one in the end, and nothing is left.
func TestRandomLivesOfClaimsUnderKills(t *testing.T) {
	seeds, steps := uint64(4), 400
	if testing.Short() {
		seeds = 2
	}
	total := map[string]int{}
	for seed := range seeds {
		w := newWorld(t, seed)
		for range steps {
			w.step()
		}
		for len(w.server.claims) > devices {
			w.end(slices.Sorted(maps.Keys(w.server.claims))[0])
		}
		w.settle(func() bool {
			ready := 0
			for _, ok := range w.prepared {
				if ok {
					ready++
				}
			}
			return ready == len(w.server.claims)
		})
		for _, uid := range slices.Collect(maps.Keys(w.server.claims)) {
			w.end(uid)
		}
		w.settle(func() bool { return len(w.server.ops) == 0 })
		for _, n := range w.nodes {
			if left, err := w.slots[n].List(); err != nil || len(left) > 0 {
				t.Errorf("node %s still has %v (%v)", n, left, err)
			}
		}
		for what, n := range w.outcome {
			total[what] += n
		}
	}
	t.Logf("%v", total)
	for _, what := range []string{"attached", "failed", "controller killed", "driver killed", "deleted by hand"} {
		if total[what] == 0 {
			t.Errorf("%s: never", what)
		}
	}
}

// Given an attachment to a node that somebody has removed from the cluster, when
// a cache says so, then the API server is asked before anybody else may have the
// device.
func TestAttachmentEndsWithItsNode(t *testing.T) {
	w := newWorld(t, 0)
	w.calm = true
	w.request()
	w.settle(func() bool { return len(w.bound) == 1 })
	op := slices.Collect(maps.Values(w.server.ops))[0]
	state := w.server.snapshot()
	delete(state.Nodes, op.Spec.Node)
	actions, _ := fabric.Decide(state, clock)
	if len(actions) != 1 || actions[0].Verb != operation.Delete {
		t.Fatalf("actions %v, want the end of the attachment", actions)
	}
	if err := actions[0].Do(t.Context(), w.server); err == nil || len(w.server.ops) != 1 {
		t.Errorf("the attachment to a node that exists was given up (%v)", err)
	}
	delete(w.server.nodes, op.Spec.Node)
	if err := actions[0].Do(t.Context(), w.server); err != nil || len(w.server.ops) != 0 {
		t.Errorf("the attachment to a node that is gone stays: %v", err)
	}
}
