// Package slots are the places of a node where network-attached GPUs are plugged
// in. The hardware is simulated: a device that is attached has a directory among
// the node's hardware, outside the driver, so that the attachment outlives it.
//
// An attachment belongs to one claim. It is also the record of what is prepared:
// a claim is prepared with the devices that are attached for it, and a device
// whose claim has a CDI spec is not detached.
package slots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// ErrInUse marks the refusal to detach a device that its claim is prepared with.
var ErrInUse = errors.New("device is in use")

// ErrNotAttached marks a claim whose device is not here.
var ErrNotAttached = errors.New("device is not attached to this node")

const (
	attachmentName = "attachment.json"
	lockName       = ".lock"
	lockTimeout    = 10 * time.Second
	version        = "v1"
)

// deviceName is what names of devices look like. They become names of
// directories.
var deviceName = regexp.MustCompile(`^net-\d{1,4}$`)

// Slots are those of one node. They are safe for concurrent use, by several
// processes too.
type Slots struct {
	dir string
	cdi *cdi.Dir
}

// Attachment is one attached device.
type Attachment struct {
	Device   string `json:"device"`
	ClaimUID string `json:"claimUID"`
}

// Open uses dir, a directory among the node's hardware that is made if need be,
// and the CDI directory.
func Open(dir, cdiDir string) (*Slots, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open slots: %w", err)
	}
	return &Slots{dir: dir, cdi: cdi.NewKindDir(cdiDir, api.FabricCDIKind)}, nil
}

// lock keeps everybody else out.
func (s *Slots) lock(ctx context.Context) (*statefile.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	return statefile.Acquire(ctx, filepath.Join(s.dir, lockName))
}

// Attach makes a device be here for a claim. A second time it does nothing; for
// another claim it is refused until the device was detached.
func (s *Slots) Attach(ctx context.Context, a Attachment) (err error) {
	if !deviceName.MatchString(a.Device) {
		return fmt.Errorf("attach device %q: not a name of a network-attached device", a.Device)
	}
	if err := claim.ValidateUID(a.ClaimUID); err != nil {
		return fmt.Errorf("attach device %q: %w", a.Device, err)
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	switch have, err := s.read(a.Device); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("attach device %q: %w", a.Device, err)
	case have == a:
		return nil
	default:
		return fmt.Errorf("attach device %q: attached for claim %s", a.Device, have.ClaimUID)
	}
	if err := os.MkdirAll(s.Processes(a.Device), 0o755); err != nil {
		return fmt.Errorf("attach device %q: %w", a.Device, err)
	}
	// As for the GPUs of the node: whoever has the device may use it.
	if err := os.Chmod(s.Processes(a.Device), 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("attach device %q: %w", a.Device, err)
	}
	if err := statefile.Write(ctx, s.file(a.Device), version, a); err != nil {
		return fmt.Errorf("attach device %q: %w", a.Device, err)
	}
	return nil
}

// Detach makes a device be gone. One that is not here is gone.
func (s *Slots) Detach(ctx context.Context, device string) (err error) {
	if !deviceName.MatchString(device) {
		return fmt.Errorf("detach device %q: not a name of a network-attached device", device)
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	have, err := s.read(device)
	if err == nil {
		prepared, err := s.cdi.Claims()
		if err != nil {
			return fmt.Errorf("detach device %q: %w", device, err)
		}
		if slices.Contains(prepared, have.ClaimUID) {
			return fmt.Errorf("detach device %q: %w by claim %s", device, ErrInUse, have.ClaimUID)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("detach device %q: %w", device, err)
	}
	// The record first: what is left without it is attached to nobody.
	if err := os.Remove(s.file(device)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("detach device %q: %w", device, err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, device)); err != nil {
		return fmt.Errorf("detach device %q: %w", device, err)
	}
	return nil
}

// List gives all attachments by device.
func (s *Slots) List() ([]Attachment, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list attached devices: %w", err)
	}
	var all []Attachment
	for _, e := range entries {
		if !deviceName.MatchString(e.Name()) {
			continue
		}
		a, err := s.read(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list attached devices: %w", err)
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Attachment) int {
		return cmp.Or(len(a.Device)-len(b.Device), cmp.Compare(a.Device, b.Device))
	})
	return all, nil
}

// Prepare writes the CDI spec for a claim whose devices are all attached for it,
// and returns the CDI device IDs in the order of devices.
func (s *Slots) Prepare(ctx context.Context, claimUID string, devices []cdi.Device) (ids []string, err error) {
	lock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	for _, d := range devices {
		have, err := s.read(d.Name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && have.ClaimUID != claimUID {
			return nil, fmt.Errorf("device %q: %w for this claim", d.Name, ErrNotAttached)
		}
		if err != nil {
			return nil, fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	spec, err := cdi.Spec(claimUID, devices)
	if err != nil {
		return nil, err
	}
	spec.Kind = api.FabricCDIKind
	if err := s.cdi.Write(claimUID, spec); err != nil {
		return nil, err
	}
	for _, d := range spec.Devices {
		ids = append(ids, spec.Kind+"="+d.Name)
	}
	return ids, nil
}

// Unprepare takes the CDI spec of a claim away. None is not an error.
func (s *Slots) Unprepare(ctx context.Context, claimUID string) (err error) {
	if err := claim.ValidateUID(claimUID); err != nil {
		return err
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return s.cdi.Remove(claimUID)
}

// Prepared lists the claims that are prepared.
func (s *Slots) Prepared() ([]string, error) { return s.cdi.Claims() }

// Processes is the directory in which the programs that use a device say so.
func (s *Slots) Processes(device string) string {
	return filepath.Join(s.dir, device, api.ProcessesName)
}

func (s *Slots) file(device string) string { return filepath.Join(s.dir, device, attachmentName) }

// read gives fs.ErrNotExist for a device that is not attached.
func (s *Slots) read(device string) (Attachment, error) {
	if !deviceName.MatchString(device) {
		return Attachment{}, fs.ErrNotExist
	}
	var a Attachment
	err := statefile.Read(s.file(device), version, &a)
	if err == nil && (a.Device != device || claim.ValidateUID(a.ClaimUID) != nil) {
		err = fmt.Errorf("%w: attachment of %q for %q", statefile.ErrCorrupt, a.Device, a.ClaimUID)
	}
	return a, err
}
