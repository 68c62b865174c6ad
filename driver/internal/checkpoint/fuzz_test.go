package checkpoint_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// sealed is data as a driver would have written it.
func sealed(data []byte) []byte {
	var compact bytes.Buffer
	compact.WriteString("1 true ")
	if json.Compact(&compact, data) != nil {
		return nil
	}
	return fmt.Appendf(nil, `{"v1":{"checksum":"sha256:%x","sequence":1,"durable":true,"data":%s}}`, sha256.Sum256(compact.Bytes()), data)
}

// Whatever the files contain: either the checkpoint is refused as damaged, or
// what it has is sound, works, and is the same for the next driver.
func FuzzCheckpoint(f *testing.F) {
	for _, data := range []string{
		`{"claims":[]}`,
		`{"claims":[{"uid":"a","namespace":"n","name":"c","phase":"PrepareCompleted","devices":[{"request":"r","pool":"p","name":"gpu-0","uuid":"GPU-a"}],"bootID":"boot-1","since":"2026-01-02T03:04:05Z"}]}`,
		`{"claims":[{"uid":"../a","phase":"PrepareStarted"}]}`,
		`{"claims":[{"uid":"a","phase":"PrepareStarted"},{"uid":"a","phase":"PrepareCompleted"}]}`,
		`{"claims":[{"uid":"a","phase":"Later"}]}`,
		`{"claims":[],"leaks":[{"uuid":"GPU-a","name":"gpu-0","claim":"n/c","baselineBytes":1,"what":"memory","bootID":"boot-1"}]}`,
		`{"claims":null,"future":true}`,
		`[]`,
	} {
		f.Add(sealed([]byte(data)), []byte(nil))
		f.Add([]byte(data), sealed([]byte(data)))
	}
	f.Add([]byte(`{"v1":`), []byte(`{"v2":{}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		base := path(t)
		// The fuzzer does not find checksums by itself.
		if s := sealed(a); s != nil {
			a = s
		}
		for suffix, content := range map[string][]byte{"-a.json": a, "-b.json": b} {
			if err := os.WriteFile(base+suffix, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := checkpoint.Open(t.Context(), base, "boot-1")
		if err != nil {
			if !errors.Is(err, statefile.ErrCorrupt) && !errors.Is(err, statefile.ErrVersion) {
				t.Fatalf("refused for another reason: %v", err)
			}
			return
		}
		before, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range before {
			if err := claim.ValidateUID(e.UID); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Start(t.Context(), entry("new-claim", "a-device-of-its-own")); err != nil && !errors.Is(err, checkpoint.ErrHeld) {
			t.Logf("start: %v", err)
		}
		if err := errors.Join(s.Remove(t.Context(), "new-claim"), s.Close()); err != nil {
			t.Fatal(err)
		}
		next := open(t, base, "boot-1")
		after, err := next.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range before {
			if e.UID == "new-claim" {
				return // it was there, and has been removed
			}
			if i >= len(after) || after[i].UID != e.UID || after[i].Phase != e.Phase {
				t.Fatalf("the next driver reads %v (-want +got):\n%s", after, cmp.Diff(before, after))
			}
		}
	})
}
