package fault

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// momentTime is for how long a fault that is over as soon as it has happened is
// listed at most: as long as it may take to happen.
const momentTime = 2 * time.Minute

// Rules that drop what is meant for the API server, and how to try each family of
// addresses that the node has. Their comment tells them from those of others.
const cutRules = `rule='-p tcp --dport 6443 -m comment --comment dra-lab-fault -j DROP'
each() {
	for table in iptables ip6tables; do
		$table -w 10 -S OUTPUT >/dev/null 2>&1 || continue
		for chain in OUTPUT FORWARD; do "$1"; done
	done
}
`

// nodeAction is how a fault of a node is done and undone: scripts for the node's
// shell. Both can be done again when they were cut off. Undone is what is done in
// any case: it may not have got as far as being done.
type nodeAction struct{ do, undo string }

func nodeActions() map[string]nodeAction {
	const startKubelet = `systemctl start kubelet`
	return map[string]nodeAction{
		api.FaultContainerdRestart: {`systemctl restart containerd`, `systemctl start containerd`},
		api.FaultKubeletKill:       {`systemctl kill --signal=KILL kubelet`, startKubelet},
		api.FaultKubeletRestart:    {`systemctl restart kubelet`, startKubelet},
		api.FaultKubeletStop:       {`systemctl stop kubelet`, startKubelet},
		api.FaultNetworkCut: {
			`cut() { $table -w 10 -C $chain $rule 2>/dev/null || $table -w 10 -I $chain 1 $rule; }
each cut
iptables -w 10 -C OUTPUT $rule`,
			`mend() { while $table -w 10 -D $chain $rule 2>/dev/null; do :; done; }
each mend`,
		},
		api.FaultNodeReboot: {}, // the engine does it
	}
}

// script is one for a shell of its own.
func script(commands string) string { return "set -eu\n" + cutRules + commands }

// timerScript undoes a fault later, whatever becomes of the lab: the node does it
// itself.
const timerScript = `set -eu
systemd-run --quiet --collect --unit="$1" --on-active="$2" --timer-property=AccuracySec=100ms /bin/sh -c "$3"`

func timerName(f api.Fault) string { return "dra-lab-fault-" + f.ID }

// injectNode records the fault on the node, and does it then: whoever is killed in
// between leaves a record, and clearing it undoes what was done.
func (l lab) injectNode(ctx context.Context, s store, hw hardware, f api.Fault) error {
	if f.Kind == api.FaultNetworkCut && s.node.ControlPlane() {
		return ui.UsageError(ui.WithHint(errors.New("the node has the API server, and cannot be cut off from it"),
			"choose a worker, as lab status shows them"))
	}
	moment := api.Moment(f.Kind)
	if moment {
		until := l.now().Add(momentTime).UTC()
		f.Until = &until
	}
	var taken error
	err := s.update(ctx, hw, string(api.TargetNode), func(faults []api.Fault) ([]api.Fault, bool) {
		taken = nil
		faults = l.alive(faults)
		if f.Kind == api.FaultNodeReboot {
			faults = nil // it ends all of them
		}
		for _, other := range faults {
			if other.Kind == f.Kind {
				taken = ui.UsageError(ui.WithHint(fmt.Errorf("it is there already, for %s", round(l.now().Sub(other.Since))),
					"lab fault clear --id %s", other.ID))
				return nil, false
			}
		}
		return append(faults, f), true
	})
	if err := errors.Join(err, taken); err != nil {
		return err
	}
	if err := l.do(ctx, s, f); err != nil {
		// The record stays if it cannot be undone.
		return errors.Join(err, l.clearRecord(context.WithoutCancel(ctx), s, f))
	}
	if moment {
		return l.forget(ctx, s, f)
	}
	return nil
}

// undoTime bounds the undoing of a fault of which the injection failed.
const undoTime = 30 * time.Second

func (l lab) clearRecord(ctx context.Context, s store, f api.Fault) error {
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	if err := l.undo(ctx, s, f); err != nil {
		return err
	}
	return l.forget(ctx, s, f)
}

// do has the fault happen.
func (l lab) do(ctx context.Context, s store, f api.Fault) error {
	if f.Kind == api.FaultNodeReboot {
		return s.node.Restart(ctx)
	}
	action := nodeActions()[f.Kind]
	// The end first: what cannot be ended in time does not begin.
	if f.Until != nil && !api.Moment(f.Kind) {
		seconds := strconv.FormatFloat(f.Until.Sub(l.now()).Seconds(), 'f', 3, 64)
		if _, err := s.node.Exec(ctx, nil, "sh", "-c", timerScript, "sh", timerName(f), seconds, script(action.undo)); err != nil {
			return fmt.Errorf("set a timer for its end: %w", err)
		}
	}
	_, err := s.node.Exec(ctx, nil, "sh", "-c", script(action.do))
	return err
}

// undo ends the fault, however far it got.
func (l lab) undo(ctx context.Context, s store, f api.Fault) error {
	action := nodeActions()[f.Kind]
	if action.undo == "" {
		return nil
	}
	stop := ""
	if f.Until != nil && !api.Moment(f.Kind) {
		stop = "\nsystemctl stop " + timerName(f) + ".timer 2>/dev/null || true"
	}
	if _, err := s.node.Exec(ctx, nil, "sh", "-c", script(action.undo+stop)); err != nil {
		return fmt.Errorf("undo %s on node %q: %w", f.Kind, s.node.Name(), err)
	}
	return nil
}

// forget removes the record of a fault.
func (l lab) forget(ctx context.Context, s store, f api.Fault) error {
	hw, err := s.read(ctx)
	if err != nil {
		return err
	}
	return s.update(ctx, hw, string(api.TargetNode), func(faults []api.Fault) ([]api.Fault, bool) {
		var kept []api.Fault
		for _, other := range faults {
			if other.ID != f.ID {
				kept = append(kept, other)
			}
		}
		return kept, len(kept) < len(faults)
	})
}

// undoNode undoes what the node has of the faults that filter chooses, and returns
// their IDs: they, and none that came meanwhile, are to be taken out of the record
// then.
func (l lab) undoNode(ctx context.Context, s store, hw hardware, filter Filter) (undone map[string]bool, err error) {
	content := hw.files[string(api.TargetNode)]
	recorded, err := api.ParseFaultsOf(api.TargetNode, content)
	if err != nil {
		return nil, fmt.Errorf("read faults of node %q: %w", s.node.Name(), err)
	}
	undone = map[string]bool{}
	var errs []error
	for _, f := range recorded.Faults {
		// One whose time is over has been undone, and another of its kind may be
		// there by now.
		if !filter.matches(f) {
			continue
		}
		if f.Active(l.now()) {
			if err := l.undo(ctx, s, f); err != nil {
				errs = append(errs, err) // and it stays in the record
				continue
			}
		}
		undone[f.ID] = true
	}
	return undone, errors.Join(errs...)
}
