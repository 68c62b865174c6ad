package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestDriverImageIsSavedUnderItsReference(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "driver.tar")
	ref, err := SaveImage(file, "driver", "registry.example:5000/lab/driver", artifacts(t))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil || !strings.HasPrefix(ref, "registry.example:5000/lab/driver:") {
		t.Fatalf("reference %q: %v", ref, err)
	}
	saved, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := saved.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Entrypoint; len(got) != 1 || got[0] != "/driver" {
		t.Errorf("entrypoint is %v", got)
	}
}

func TestImageThatIsNotSavedLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if ref, err := SaveImage(filepath.Join(dir, "driver.tar"), "driver", "Not A Repository", artifacts(t)); err == nil {
		t.Errorf("got %q", ref)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if ref, err := SaveImage(filepath.Join(dir, "taken"), "driver", "", artifacts(t)); err == nil {
		t.Errorf("got %q", ref)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}
