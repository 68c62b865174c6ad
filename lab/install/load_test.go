package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// fakeNode keeps images and the inventory, and counts what is done to it.
type fakeNode struct {
	name string

	mu        sync.Mutex
	images    []string
	inventory []byte
	loads     int
	writes    int
	execs     int
}

func (n *fakeNode) Name() string { return n.name }

func (n *fakeNode) Exec(_ context.Context, _ io.Reader, argv ...string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.execs++
	switch {
	case slices.Contains(argv, surveyScript):
		return append([]byte(strings.Join(n.images, "\n")+"\n--\n"), n.inventory...), nil
	case argv[0] == "ctr" && slices.Contains(argv, "remove"):
		n.images = slices.DeleteFunc(n.images, func(ref string) bool { return slices.Contains(argv, ref) })
		return nil, nil
	}
	return nil, errors.New("unexpected command")
}

func (n *fakeNode) WriteFile(_ context.Context, path string, data []byte, _ fs.FileMode) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if path != api.HardwareDir+"/inventory.json" {
		return errors.New("unexpected path")
	}
	n.inventory = bytes.Clone(data)
	n.writes++
	return nil
}

func (n *fakeNode) LoadImageArchive(_ context.Context, archive io.Reader) error {
	data, err := io.ReadAll(archive)
	if err != nil {
		return err
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, image := range manifest {
		n.images = append(n.images, image.RepoTags...)
	}
	n.loads++
	return nil
}

// artifacts is a directory with programs driver and trainer. Any ELF file
// does; a small one keeps the tests fast.
func artifacts(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	small, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"driver", "controller", "trainer"} {
		if err := os.Symlink(small, filepath.Join(directory, program)); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func quiet() *ui.UI { return ui.New(io.Discard, io.Discard, 0) }

func TestLoadBringsWhatIsMissingOnce(t *testing.T) {
	ctx := t.Context()
	// Given a control plane and two workers with nothing of ours but an old image,
	old := driverRepository + ":0000000000000000"
	control, one, two := &fakeNode{name: "control"}, &fakeNode{name: "one", images: []string{old, "other"}}, &fakeNode{name: "two"}
	i := installer{
		nodes:   []node{control, one, two},
		options: Options{Artifacts: artifacts(t)},
		ui:      quiet(),
	}

	// when the lab is loaded,
	built, stale, err := i.load(ctx, []string{"one", "two"})
	if err != nil {
		t.Fatal(err)
	}

	// then every node has both images, and the workers have GPUs.
	for _, n := range []*fakeNode{control, one, two} {
		for _, image := range built.list() {
			if !slices.Contains(n.images, image.Ref()) {
				t.Errorf("node %s has %v, want also %s", n.name, n.images, image.Ref())
			}
		}
	}
	want, err := GPUs{}.file()
	if err != nil {
		t.Fatal(err)
	}
	if string(one.inventory) != string(want) || string(two.inventory) != string(want) || control.inventory != nil {
		t.Errorf("inventories %q, %q and %q, want %q, the same, and none", one.inventory, two.inventory, control.inventory, want)
	}

	// And when the old image is discarded, the others stay.
	i.discard(ctx, stale)
	if slices.Contains(one.images, old) || !slices.Contains(one.images, "other") {
		t.Errorf("images %v, want the old one gone and the other there", one.images)
	}

	// And when it is loaded again, then nothing is done but to look.
	for _, n := range []*fakeNode{control, one, two} {
		n.loads, n.writes, n.execs = 0, 0, 0
	}
	if _, stale, err = i.load(ctx, []string{"one", "two"}); err != nil {
		t.Fatal(err)
	}
	i.discard(ctx, stale)
	for _, n := range []*fakeNode{control, one, two} {
		if n.loads != 0 || n.writes != 0 || n.execs != 1 {
			t.Errorf("node %s: %d loads, %d writes, %d commands, want 0, 0, 1", n.name, n.loads, n.writes, n.execs)
		}
	}
}

func TestMissingProgramSaysHowToBuildIt(t *testing.T) {
	i := installer{options: Options{Artifacts: t.TempDir()}, ui: quiet()}
	_, _, err := i.load(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "/driver") || ui.Hint(err) != "make build" {
		t.Errorf("error %v, hint %q, want the missing file and make build", err, ui.Hint(err))
	}
}

func TestNodeThatCannotLoadIsNamed(t *testing.T) {
	i := installer{nodes: []node{brokenNode{&fakeNode{name: "one"}}}, options: Options{Artifacts: artifacts(t)}, ui: quiet()}
	_, _, err := i.load(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), `into node "one": no space`) {
		t.Errorf("error %v, want one that names the node and the cause", err)
	}
}

type brokenNode struct{ *fakeNode }

func (brokenNode) LoadImageArchive(context.Context, io.Reader) error { return errors.New("no space") }

func TestSurveyThatMakesNoSenseIsAnError(t *testing.T) {
	_, err := look(t.Context(), babblingNode{})
	if err == nil || !strings.Contains(err.Error(), `node "babel": unexpected answer`) {
		t.Errorf("error %v, want one that quotes the answer", err)
	}
}

type babblingNode struct{ node }

func (babblingNode) Name() string { return "babel" }
func (babblingNode) Exec(context.Context, io.Reader, ...string) ([]byte, error) {
	return []byte("hello"), nil
}

func TestSurveyReadsImagesAndInventory(t *testing.T) {
	n := &fakeNode{name: "one", images: []string{"a", "b"}, inventory: []byte("{}\n")}
	got, err := look(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(survey{images: []string{"a", "b"}, inventory: []byte("{}\n")}, got, cmp.AllowUnexported(survey{})); diff != "" {
		t.Errorf("survey (-want +got):\n%s", diff)
	}
}
