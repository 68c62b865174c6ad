package slots_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

func open(t *testing.T) (s *slots.Slots, dir, cdiDir string) {
	t.Helper()
	dir, cdiDir = filepath.Join(t.TempDir(), "fabric"), t.TempDir()
	s, err := slots.Open(dir, cdiDir)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir, cdiDir
}

func devices(names ...string) []cdi.Device {
	var all []cdi.Device
	for _, n := range names {
		all = append(all, cdi.Device{Request: "gpu", Name: n, UUID: "GPU-" + n})
	}
	return all
}

func TestLifeOfAnAttachment(t *testing.T) {
	s, dir, cdiDir := open(t)
	ctx := t.Context()
	a := slots.Attachment{Device: "net-1", ClaimUID: "uid-1"}

	// What is not attached cannot be prepared, and is detached already.
	if _, err := s.Prepare(ctx, "uid-1", devices("net-1")); !errors.Is(err, slots.ErrNotAttached) {
		t.Errorf("prepare before attach: %v, want %v", err, slots.ErrNotAttached)
	}
	if err := s.Detach(ctx, "net-1"); err != nil {
		t.Errorf("detach before attach: %v", err)
	}

	// A device is attached for one claim, as often as one likes.
	for range 2 {
		if err := s.Attach(ctx, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Attach(ctx, slots.Attachment{Device: "net-1", ClaimUID: "uid-2"}); err == nil {
		t.Error("attached for a second claim, want an error")
	}
	if _, err := s.Prepare(ctx, "uid-2", devices("net-1")); !errors.Is(err, slots.ErrNotAttached) {
		t.Errorf("prepare for another claim: %v, want %v", err, slots.ErrNotAttached)
	}

	// Prepared, it is not detached; a new process knows all of it.
	ids, err := s.Prepare(ctx, "uid-1", devices("net-1"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{api.FabricCDIKind + "=uid-1-net-1"}, ids); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	if s, err = slots.Open(dir, cdiDir); err != nil {
		t.Fatal(err)
	}
	if err := s.Detach(ctx, "net-1"); !errors.Is(err, slots.ErrInUse) {
		t.Errorf("detach while it is prepared: %v, want %v", err, slots.ErrInUse)
	}
	all, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]slots.Attachment{a}, all); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}

	// Unprepared, it is.
	for range 2 {
		if err := s.Unprepare(ctx, "uid-1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Detach(ctx, "net-1"); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("after detach: %v, %v", all, err)
	}
	if left, err := os.ReadDir(cdiDir); err != nil || len(left) != 0 {
		t.Errorf("CDI directory has %v (%v)", left, err)
	}
}

func TestNamesThatWouldLeadElsewhereAreRefused(t *testing.T) {
	s, _, _ := open(t)
	for _, name := range []string{"", ".", "..", "../x", "gpu-0", "net-", "net-1/x", "net-99999"} {
		if err := s.Attach(t.Context(), slots.Attachment{Device: name, ClaimUID: "uid"}); err == nil {
			t.Errorf("attached %q, want an error", name)
		}
		if err := s.Detach(t.Context(), name); err == nil {
			t.Errorf("detached %q, want an error", name)
		}
	}
	if err := s.Attach(t.Context(), slots.Attachment{Device: "net-0", ClaimUID: "../uid"}); err == nil || !strings.Contains(err.Error(), "claim UID") {
		t.Errorf("attached for claim ../uid: %v, want an error", err)
	}
}

func TestDamagedAttachmentIsNotForgotten(t *testing.T) {
	s, dir, _ := open(t)
	if err := s.Attach(t.Context(), slots.Attachment{Device: "net-0", ClaimUID: "uid"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "net-0", "attachment.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(); err == nil {
		t.Error("list: no error")
	}
	if err := s.Detach(t.Context(), "net-0"); err == nil {
		t.Error("detach: no error")
	}
}

// What an attach that was cut off left is no attachment, and in nobody's way.
func TestAttachThatWasCutOff(t *testing.T) {
	s, dir, _ := open(t)
	if err := os.MkdirAll(filepath.Join(dir, "net-0", "processes"), 0o755); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("list: %v, %v", all, err)
	}
	if err := s.Attach(t.Context(), slots.Attachment{Device: "net-0", ClaimUID: "uid"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Detach(t.Context(), "net-0"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "net-0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the device's directory stays: %v", err)
	}
}
