package cdi_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimecdi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
)

// Whatever a claim and its device are called: either the driver refuses to
// describe them, or there is one file, in the directory where it belongs, in
// which a runtime finds the device under the ID that the kubelet is told.
func FuzzNames(f *testing.F) {
	f.Add(uid, "gpu-0", "GPU-a")
	f.Add("a", "gpu-0-mig-1g.10gb-3", "MIG-b")
	f.Add("../../etc/x", "gpu-0", "GPU-a")
	f.Add("a", "../gpu", "GPU-a")
	f.Add("a=b", "gpu,0", "GPU\n")
	f.Add("", "", "")
	f.Add(strings.Repeat("a", 64), strings.Repeat("d", 63), strings.Repeat("u", 96))
	f.Fuzz(func(t *testing.T, claimUID, device, uuid string) {
		if claim.ValidateUID(claimUID) != nil {
			return // nothing further is done with such a claim
		}
		spec, err := cdi.Spec(claimUID, []cdi.Device{gpu("gpu", device, uuid)})
		if err != nil {
			return
		}
		root := t.TempDir()
		specs := filepath.Join(root, "specs")
		dir := cdi.NewDir(specs)
		if err := dir.Write(claimUID, spec); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(specs)
		if err != nil || len(files) != 1 {
			t.Fatalf("files are %v, %v", files, err)
		}
		if outside, err := os.ReadDir(root); err != nil || len(outside) != 1 {
			t.Fatalf("outside of the directory: %v, %v", outside, err)
		}
		if uids, err := dir.Claims(); err != nil || len(uids) != 1 || uids[0] != claimUID {
			t.Fatalf("claims are %q, %v", uids, err)
		}
		// JSON has no way to write what is not UTF-8; no name has that.
		if data, err := json.Marshal([]string{device, uuid}); err != nil || strings.Contains(string(data), `\ufffd`) {
			return
		}
		cache, err := runtimecdi.NewCache(runtimecdi.WithSpecDirs(specs), runtimecdi.WithAutoRefresh(false))
		if err != nil {
			t.Fatal(err)
		}
		if got := cache.GetDevice(cdi.QualifiedName(claimUID, device)); got == nil {
			t.Fatalf("a runtime does not find %q: %v", cdi.QualifiedName(claimUID, device), cache.GetErrors())
		}
		if err := dir.Remove(claimUID); err != nil {
			t.Fatal(err)
		}
	})
}
