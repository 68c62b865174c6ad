package install

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/install/internal/image"
)

// node is what this package needs of a node.
type node interface {
	Name() string
	Exec(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error)
	// WriteFile makes missing directories.
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	LoadImageArchive(ctx context.Context, archive io.Reader) error
}

// survey is what a node has.
type survey struct {
	images    []string // references
	inventory []byte   // nil: none
}

// inventoryPath is where the node's simulated hardware is described.
func inventoryPath() string { return path.Join(api.HardwareDir, api.InventoryName) }

// surveyScript asks for everything at once: a command in a node costs more
// than what it does.
const surveyScript = `ctr --namespace k8s.io images list --quiet || exit 1
echo --
if [ -f "$1" ]; then cat "$1"; fi`

func look(ctx context.Context, n node) (survey, error) {
	out, err := n.Exec(ctx, nil, "sh", "-c", surveyScript, "sh", inventoryPath())
	if err != nil {
		return survey{}, fmt.Errorf("list images of node %q: %w", n.Name(), err)
	}
	refs, inventory, found := bytes.Cut(out, []byte("--\n"))
	if !found {
		return survey{}, fmt.Errorf("list images of node %q: unexpected answer %q", n.Name(), out)
	}
	s := survey{images: strings.Fields(string(refs))}
	if len(inventory) > 0 {
		s.inventory = inventory
	}
	return s, nil
}

// stale lists images of the lab that are not those built now.
func (s survey) stale(built images) []string {
	var refs []string
	for _, ref := range s.images {
		ours := slices.ContainsFunc([]string{driverRepository, controllerRepository, trainerRepository}, func(repository string) bool {
			return strings.HasPrefix(ref, repository+":")
		})
		if ours && !slices.ContainsFunc(built.list(), func(i *image.Image) bool { return i.Ref() == ref }) {
			refs = append(refs, ref)
		}
	}
	return refs
}

func (s survey) writeInventory(ctx context.Context, n node, content []byte) error {
	if bytes.Equal(s.inventory, content) {
		return nil
	}
	if err := n.WriteFile(ctx, inventoryPath(), content, 0o644); err != nil {
		return fmt.Errorf("write GPUs of node %q: %w", n.Name(), err)
	}
	return nil
}

// loadMissing loads what the node lacks, in one go: most of the time of a load
// is not the bytes.
func (s survey) loadMissing(ctx context.Context, n node, built images, shared *archives) error {
	missing := slices.DeleteFunc(built.list(), func(i *image.Image) bool {
		return slices.Contains(s.images, i.Ref())
	})
	if len(missing) == 0 {
		return nil
	}
	archive, err := shared.of(missing)
	if err != nil {
		return err
	}
	if err := n.LoadImageArchive(ctx, bytes.NewReader(archive)); err != nil {
		return fmt.Errorf("load images of the lab into node %q: %w", n.Name(), err)
	}
	return nil
}

func remove(ctx context.Context, n node, refs []string) error {
	argv := append([]string{"ctr", "--namespace", "k8s.io", "images", "remove"}, refs...)
	if _, err := n.Exec(ctx, nil, argv...); err != nil {
		return fmt.Errorf("remove images from node %q: %w", n.Name(), err)
	}
	return nil
}

// archives keeps images as archives, which are made when the first node needs
// them and shared by all. It is safe for concurrent use.
type archives struct {
	mu     sync.Mutex
	byRefs map[string][]byte
}

func (a *archives) of(images []*image.Image) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var key string
	for _, i := range images {
		key += i.Ref() + " "
	}
	if archive, ok := a.byRefs[key]; ok {
		return archive, nil
	}
	var buffer bytes.Buffer
	if err := image.Write(&buffer, images...); err != nil {
		return nil, err
	}
	if a.byRefs == nil {
		a.byRefs = map[string][]byte{}
	}
	a.byRefs[key] = buffer.Bytes()
	return buffer.Bytes(), nil
}
