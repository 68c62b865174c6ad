package host

import (
	"bytes"
	"io"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Two labs once removed each other's probe image: the names differed, but the
// IDs, by which engines remove, were the same.
func TestProbeImagesOfTwoProcessesHaveNothingInCommon(t *testing.T) {
	identity := func(tag string) (id v1.Hash, layer v1.Hash) {
		t.Helper()
		archive, err := imageArchive(tag, "/probe", []byte("program"))
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if id, err = image.ConfigName(); err != nil {
			t.Fatal(err)
		}
		layers, err := image.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if layer, err = layers[0].DiffID(); err != nil {
			t.Fatal(err)
		}
		return id, layer
	}
	id1, layer1 := identity("dra-lab/probe:1-a")
	id2, layer2 := identity("dra-lab/probe:2-b")
	if id1 == id2 {
		t.Errorf("both images have ID %s", id1)
	}
	if layer1 == layer2 {
		t.Errorf("both images have layer %s", layer1)
	}
}
