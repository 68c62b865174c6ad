package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Target is one GPU, driver or node. An empty field means the only node that can
// have the fault, or the node's only GPU.
type Target struct {
	Node   string
	Device string // "gpu-0"; of faults of the driver or the node "", "driver" or "node"
}

// Filter chooses among active faults. Empty fields choose all.
type Filter struct {
	Node, Device, ID string
}

// Active is a fault that is there now.
type Active struct {
	Node   string `json:"node"`
	Device string `json:"device"` // a GPU, "driver" or "node"
	api.Fault
}

// Age is how long the fault has been there.
func (a Active) Age(now time.Time) time.Duration { return now.Sub(a.Since) }

// Inject gives the target the fault f. An empty ID and a zero Since are filled
// in. A node or GPU that is not there is a usage error that names those that are.
// A fault that is over as soon as it has happened has happened when Inject
// returns, and is not listed afterwards.
func Inject(ctx context.Context, c *cluster.Cluster, target Target, f api.Fault) error {
	l, err := open(ctx, c)
	if err != nil {
		return err
	}
	return l.inject(ctx, target, f)
}

// Clear takes away the faults that filter chooses and returns them. To find
// none is no error. When some nodes do not answer it clears those of the others
// and returns them with an error that names the nodes.
func Clear(ctx context.Context, c *cluster.Cluster, filter Filter) ([]Active, error) {
	l, err := open(ctx, c)
	if err != nil {
		return nil, err
	}
	return l.clear(ctx, filter)
}

// List returns the active faults of all nodes, by node, device and age. When
// some nodes do not answer it returns the faults of the others and an error
// that names them.
func List(ctx context.Context, c *cluster.Cluster) ([]Active, error) {
	l, err := open(ctx, c)
	if err != nil {
		return nil, err
	}
	return l.list(ctx)
}

// lab is the part of a cluster that can be broken.
type lab struct {
	stores []store
	now    func() time.Time
}

func open(ctx context.Context, c *cluster.Cluster) (lab, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return lab{}, err
	}
	l := lab{now: time.Now}
	for _, n := range nodes {
		l.stores = append(l.stores, store{node: n, directory: api.HardwareDir})
	}
	return l, nil
}

func (l lab) inject(ctx context.Context, target Target, f api.Fault) error {
	f, err := complete(f, l.now())
	if err != nil {
		return ui.UsageError(fmt.Errorf("inject fault %s: %w", f.Kind, err))
	}
	kind := api.Target(f.Kind)
	find := l.find
	if kind == api.TargetNode {
		find = l.findNode
	}
	s, hw, err := find(ctx, target.Node)
	if err != nil {
		return fmt.Errorf("inject fault %s: %w", f.Kind, err)
	}
	device, err := hw.choose(kind, target.Device)
	if err == nil && f.Kind == api.FaultFabric {
		err = hw.checkFabric(device)
	}
	switch {
	case err != nil:
	case kind == api.TargetNode:
		err = l.injectNode(ctx, s, hw, f)
	default:
		err = s.update(ctx, hw, device, func(faults []api.Fault) ([]api.Fault, bool) {
			return append(l.alive(faults), f), true
		})
	}
	if err != nil {
		return fmt.Errorf("inject fault %s on node %q: %w", f.Kind, s.node.Name(), err)
	}
	return nil
}

// choose gives the directory of the target among the hardware.
func (hw hardware) choose(kind api.FaultTarget, device string) (string, error) {
	if kind == api.TargetGPU {
		return choose("device", device, hw.devices)
	}
	if device == "" {
		return string(kind), nil
	}
	return choose("device", device, []string{string(kind)})
}

// checkFabric refuses a GPU that has no fabric to be kept out of.
func (hw hardware) checkFabric(device string) error {
	with := slices.DeleteFunc(slices.Clone(hw.devices), func(d string) bool {
		return !api.HasFabric(hw.profiles[slices.Index(hw.devices, d)])
	})
	switch {
	case slices.Contains(with, device):
		return nil
	case len(with) == 0:
		return ui.UsageError(ui.WithHint(fmt.Errorf("%s has no NVLink fabric", device), "no GPU of the node has; lab up --gpus simulated=h100:4 makes such ones"))
	}
	return ui.UsageError(ui.WithHint(fmt.Errorf("%s has no NVLink fabric", device), "one of %s", strings.Join(with, ", ")))
}

// findNode returns the node of this name, or the only one.
func (l lab) findNode(ctx context.Context, name string) (store, hardware, error) {
	var names []string
	for _, s := range l.stores {
		names = append(names, s.node.Name())
	}
	chosen, err := choose("node", name, names)
	if err != nil {
		return store{}, hardware{}, err
	}
	s := l.stores[slices.Index(names, chosen)]
	hw, err := s.read(ctx)
	return s, hw, err
}

// find returns the node of this name, or the only one with simulated GPUs.
func (l lab) find(ctx context.Context, name string) (store, hardware, error) {
	if name != "" {
		i := slices.IndexFunc(l.stores, func(s store) bool { return s.node.Name() == name })
		if i >= 0 {
			hw, err := l.stores[i].read(ctx)
			if err == nil && !hw.simulated {
				err = ui.UsageError(ui.WithHint(fmt.Errorf("node %q has no simulated GPUs", name),
					"only simulated GPUs can be broken; lab status shows which node has them"))
			}
			return l.stores[i], hw, err
		}
	}
	all, err := l.readAll(ctx)
	var names []string
	for i, s := range l.stores {
		if all[i].simulated {
			names = append(names, s.node.Name())
		}
	}
	switch {
	case err != nil && (name == "" || len(names) == 0):
		// The only node that answers is not the only node.
		return store{}, hardware{}, err
	case len(names) == 0:
		return store{}, hardware{}, ui.WithHint(errors.New("no node has simulated GPUs"),
			"only simulated GPUs can be broken: lab up --gpus simulated")
	}
	chosen, err := choose("node", name, names)
	if err != nil {
		return store{}, hardware{}, err
	}
	i := slices.IndexFunc(l.stores, func(s store) bool { return s.node.Name() == chosen })
	return l.stores[i], all[i], nil
}

// choose takes the wanted name out of those that there are, or the only one
// when none is wanted.
func choose(what, wanted string, have []string) (string, error) {
	switch {
	case wanted == "" && len(have) == 1:
		return have[0], nil
	case wanted == "":
		return "", ui.UsageError(ui.WithHint(fmt.Errorf("several %ss to choose from: %s", what, strings.Join(have, ", ")),
			"add --%s %s", what, have[0]))
	case !slices.Contains(have, wanted):
		return "", ui.UsageError(ui.WithHint(fmt.Errorf("unknown %s %q", what, wanted),
			"one of %s", strings.Join(have, ", ")))
	}
	return wanted, nil
}

func (l lab) clear(ctx context.Context, filter Filter) ([]Active, error) {
	chosen, all, unread, err := l.scope(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("clear faults: %w", err)
	}
	// A node that does not answer must not keep the others from being mended.
	cleared := make([][]Active, len(chosen))
	errs := make([]error, len(chosen))
	var group sync.WaitGroup
	for i, s := range chosen {
		group.Go(func() { cleared[i], errs[i] = l.clearNode(ctx, s, all[i], filter) })
	}
	group.Wait()
	list := slices.Concat(cleared...)
	order(list)
	if err := errors.Join(append(errs, unread)...); err != nil {
		return list, fmt.Errorf("clear faults: %w", err)
	}
	return list, nil
}

// scope returns the nodes that filter leaves, and their hardware; unread names
// those that do not answer, whose hardware is empty. Names that do not exist are
// errors: a misspelt one would clear nothing and look well.
func (l lab) scope(ctx context.Context, filter Filter) (chosen []store, all []hardware, unread, err error) {
	if filter.Node != "" {
		s, hw, err := l.findNode(ctx, filter.Node)
		if err != nil {
			return nil, nil, nil, err
		}
		chosen, all = []store{s}, []hardware{hw}
	} else {
		chosen = l.stores
		all, unread = l.readAll(ctx)
	}
	if filter.Device != "" {
		devices := []string{string(api.TargetDriver), string(api.TargetNode)}
		for _, hw := range all {
			devices = append(devices, hw.devices...)
		}
		slices.Sort(devices)
		if _, err := choose("device", filter.Device, slices.Compact(devices)); err != nil {
			if unread != nil {
				err = unread // it may be there
			}
			return nil, nil, nil, err
		}
	}
	return chosen, all, unread, nil
}

func (l lab) clearNode(ctx context.Context, s store, hw hardware, filter Filter) ([]Active, error) {
	var cleared []Active
	var errs []error
	for device := range hw.files {
		if filter.Device != "" && device != filter.Device {
			continue
		}
		matches := filter.matches
		if device == string(api.TargetNode) {
			undone, err := l.undoNode(ctx, s, hw, filter)
			errs = append(errs, err)
			matches = func(f api.Fault) bool { return undone[f.ID] }
		}
		var gone []Active
		errs = append(errs, s.update(ctx, hw, device, func(faults []api.Fault) ([]api.Fault, bool) {
			gone = gone[:0]
			var kept []api.Fault
			for _, f := range faults {
				if matches(f) {
					gone = append(gone, Active{Node: s.node.Name(), Device: device, Fault: f})
				} else {
					kept = append(kept, f)
				}
			}
			return kept, len(gone) > 0
		}))
		if errs[len(errs)-1] == nil {
			cleared = append(cleared, slices.DeleteFunc(gone, func(a Active) bool { return !a.Active(l.now()) })...)
		}
	}
	return cleared, errors.Join(errs...)
}

func (f Filter) matches(fault api.Fault) bool {
	return f.ID == "" || f.ID == fault.ID
}

func (l lab) list(ctx context.Context) ([]Active, error) {
	all, err := l.readAll(ctx)
	errs := []error{err}
	var list []Active
	for i, hw := range all {
		node := l.stores[i].node.Name()
		for device, content := range hw.files {
			faults, err := api.ParseFaults(content)
			if err != nil {
				errs = append(errs, fmt.Errorf("read faults of %s on node %q: %w", device, node, err))
				continue
			}
			for _, f := range l.alive(faults.Faults) {
				list = append(list, Active{Node: node, Device: device, Fault: f})
			}
		}
	}
	order(list)
	if err := errors.Join(errs...); err != nil {
		return list, fmt.Errorf("list faults: %w", err)
	}
	return list, nil
}

// readAll reads the hardware of all nodes at once, in the order of stores.
// Those that fail are empty in the result and named in the error.
func (l lab) readAll(ctx context.Context) ([]hardware, error) {
	all := make([]hardware, len(l.stores))
	errs := make([]error, len(l.stores))
	var group sync.WaitGroup
	for i, s := range l.stores {
		group.Go(func() { all[i], errs[i] = s.read(ctx) })
	}
	group.Wait()
	return all, errors.Join(errs...)
}

// alive drops the faults whose time is over.
func (l lab) alive(faults []api.Fault) []api.Fault {
	now := l.now()
	return slices.DeleteFunc(slices.Clone(faults), func(f api.Fault) bool { return !f.Active(now) })
}

func order(list []Active) {
	slices.SortFunc(list, func(a, b Active) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		if c := strings.Compare(a.Device, b.Device); c != 0 {
			return c
		}
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
}
