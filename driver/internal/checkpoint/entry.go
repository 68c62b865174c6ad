// Package checkpoint remembers which claims are prepared, across the death of
// the driver and of the node.
//
// A claim is recorded twice: when its preparation starts, before anything on
// the node changes, and when it is complete. After a crash the record says what
// may have been left half done. The same record is the last line of defence
// against giving a device to two claims: starting a claim and checking that
// nobody holds its devices is one step, between all drivers on the node.
package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// ErrHeld marks the refusal to start a claim whose device another claim holds.
var ErrHeld = errors.New("device is held by another claim")

// Phase says how far the preparation of a claim got.
type Phase string

const (
	// Started means that a preparation began; parts of it may be done.
	Started Phase = "PrepareStarted"
	// Completed means that everything is done and the kubelet may know.
	Completed Phase = "PrepareCompleted"
)

// Entry is one claim.
type Entry struct {
	UID       string   `json:"uid"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Phase     Phase    `json:"phase"`
	Devices   []Device `json:"devices"`
	// BootID is that of the machine when the phase was reached: what was done
	// to the hardware before a reboot is gone after it.
	BootID string `json:"bootID"`
	// Since is when the phase was reached.
	Since time.Time `json:"since"`
}

// Device is one device of a claim.
type Device struct {
	Request string `json:"request"` // with the subrequest, if there is one
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	// Monitor means that the claim only looks at the device (admin access) and
	// does not keep others from holding it.
	Monitor bool `json:"shared,omitempty"`
	// Share identifies the part of a shared device that the claim has; its size
	// is in Settings. Empty means the whole device.
	Share string `json:"share,omitempty"`
	// MemoryBytes is all of the device's memory, if the claim has a share.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	// Partition is set when the device is a partition of a GPU: then the claim
	// holds this part of the GPU, and UUID tells which it is. A driver that does
	// not know partitions ignores it.
	Partition *Partition `json:"partition,omitempty"`
	// Settings are those that the device has for the claim.
	Settings device.Settings `json:"settings,omitzero"`
	// BaselineBytes is the memory in use before the claim was prepared, nil if
	// it could not be read. After unprepare the device should be back there. All
	// shares of a device have the same one, from before the first of them: it is
	// where the device should be when the last one is given back.
	BaselineBytes *uint64 `json:"baselineBytes,omitempty"`
}

// Partition is the place of a partition on its GPU.
type Partition struct {
	Parent string `json:"parent"` // the GPU's own device, "gpu-0"
	Start  int    `json:"start"`  // first memory slice
	Size   int    `json:"size"`   // memory slices
}

// overlaps says whether two devices have something of one GPU in common.
func (d Device) overlaps(other Device) bool {
	if d.Pool != other.Pool {
		return false
	}
	switch p, o := d.Partition, other.Partition; {
	case p == nil && o == nil:
		return d.Name == other.Name
	case p == nil:
		return d.Name == o.Parent
	case o == nil:
		return p.Parent == other.Name
	default:
		return p.Parent == o.Parent && device.Overlap(p.Start, p.Size, o.Start, o.Size)
	}
}

// Names are the names of the entry's devices, in its order.
func (e Entry) Names() []string {
	names := make([]string, 0, len(e.Devices))
	for _, d := range e.Devices {
		names = append(names, d.Name)
	}
	return names
}

// check refuses an entry that no driver has written: parts of it become names
// of files.
func (e Entry) check() error {
	if err := claim.ValidateUID(e.UID); err != nil {
		return err
	}
	if e.Phase != Started && e.Phase != Completed {
		return fmt.Errorf("claim %s: phase is %q", e.UID, e.Phase)
	}
	return nil
}

// sameDevices says whether both grant the same devices for the same requests.
func (e Entry) sameDevices(other Entry) bool {
	return slices.EqualFunc(e.Devices, other.Devices, func(a, b Device) bool {
		return a.Request == b.Request && a.Pool == b.Pool && a.Name == b.Name && a.UUID == b.UUID && a.Monitor == b.Monitor && a.Share == b.Share
	})
}

// Leak is a device that was not as it had been before its claim when that was
// unprepared: a process still used it, or memory did not come back. It is held
// by nobody, but whoever gets it gets less than a whole device.
type Leak struct {
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	Claim string `json:"claim"` // namespace/name, for people
	// BaselineBytes is where the memory in use has to be again.
	BaselineBytes uint64 `json:"baselineBytes"`
	// What was left: a short word for a taint.
	What string `json:"what"`
	// BootID is that of the machine then: a reboot is a reset.
	BootID string    `json:"bootID"`
	Since  time.Time `json:"since"`
}

// State is what there is to remember.
type State struct {
	Claims map[string]Entry // by UID
	Leaks  map[string]Leak  // by UUID of the device
}

func newState() State {
	return State{Claims: map[string]Entry{}, Leaks: map[string]Leak{}}
}

func (s State) clone() State {
	return State{Claims: maps.Clone(s.Claims), Leaks: maps.Clone(s.Leaks)}
}

// start decides what becomes of a claim that the kubelet wants prepared.
func (s State) start(want Entry) (Entry, error) {
	if have, ok := s.Claims[want.UID]; ok {
		if !have.sameDevices(want) {
			return Entry{}, fmt.Errorf("claim %s: recorded with devices %v, now allocated %v", want.UID, have.Names(), want.Names())
		}
		if have.Phase == Completed && have.BootID == want.BootID {
			return have, nil
		}
		// Half done, or done before a reboot: do it again, but measure against
		// the baseline of the first time unless the machine has restarted.
		if have.BootID == want.BootID {
			for i := range want.Devices {
				want.Devices[i].BaselineBytes = have.Devices[i].BaselineBytes
			}
		}
	}
	for i, d := range want.Devices {
		if err := s.free(d, want.UID); err != nil {
			return Entry{}, err
		}
		if other, ok := s.holder(d, want.UID); ok && d.Share != "" {
			want.Devices[i].BaselineBytes = other.BaselineBytes
		}
	}
	for i, d := range want.Devices {
		for _, other := range want.Devices[:i] {
			if !d.Monitor && !other.Monitor && d.Name != other.Name && d.overlaps(other) {
				return Entry{}, fmt.Errorf("device %q: %q of the same claim has a part of it", d.Name, other.Name)
			}
		}
	}
	want.Phase = Started
	s.Claims[want.UID] = want
	return want, nil
}

// holder is what another claim holds of a device, if one does.
func (s State) holder(d Device, uid string) (Device, bool) {
	for _, other := range slices.Sorted(maps.Keys(s.Claims)) {
		for _, held := range s.Claims[other].Devices {
			if other != uid && !held.Monitor && held.Pool == d.Pool && held.Name == d.Name {
				return held, true
			}
		}
	}
	return Device{}, false
}

// free says whether a claim may have a device: nobody else holds it, or what
// others hold are shares that leave enough of the memory for one more.
func (s State) free(d Device, uid string) error {
	if d.Monitor {
		return nil
	}
	used := d.Settings.MemoryBytes
	for _, other := range slices.Sorted(maps.Keys(s.Claims)) {
		if other == uid {
			continue
		}
		e := s.Claims[other]
		for _, held := range e.Devices {
			if held.Monitor || !d.overlaps(held) {
				continue
			}
			if held.Name != d.Name {
				return fmt.Errorf("device %q: %w: %s/%s (%s) has %q of the same GPU", d.Name, ErrHeld, e.Namespace, e.Name, e.UID, held.Name)
			}
			if d.Share == "" || held.Share == "" || d.Share == held.Share {
				return fmt.Errorf("device %q: %w: %s/%s (%s)", d.Name, ErrHeld, e.Namespace, e.Name, e.UID)
			}
			if used += held.Settings.MemoryBytes; used > d.MemoryBytes {
				return fmt.Errorf("device %q: %w: %s/%s (%s) and others have too much of its memory for %d bytes more",
					d.Name, ErrHeld, e.Namespace, e.Name, e.UID, d.Settings.MemoryBytes)
			}
		}
	}
	return nil
}
