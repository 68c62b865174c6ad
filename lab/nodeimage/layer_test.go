package nodeimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listing returns one line per entry of a tar archive.
func listing(t *testing.T, archive []byte) string {
	t.Helper()
	var out strings.Builder
	tr := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(h.ModTime.Truncate(0)) || h.ModTime.Unix() != 0 {
			t.Errorf("%s has the time %s", h.Name, h.ModTime)
		}
		fmt.Fprintf(&out, "%c %04o %s", h.Typeflag, h.Mode, h.Name)
		if h.Linkname != "" {
			fmt.Fprintf(&out, " -> %s", h.Linkname)
		}
		if len(content) > 0 {
			fmt.Fprintf(&out, " %q", content)
		}
		fmt.Fprintln(&out)
	}
}

func TestTree(t *testing.T) {
	base, extra := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(base, "usr", "bin"), 0o755),
		os.Mkdir(filepath.Join(base, "root"), 0o700),
		os.MkdirAll(filepath.Join(base, "proc", "1"), 0o755),
		writeFile(filepath.Join(base, "usr", "bin", "tool"), []byte("x"), 0o755),
		os.Link(filepath.Join(base, "usr", "bin", "tool"), filepath.Join(base, "usr", "bin", "twin")),
		os.Symlink("usr/bin", filepath.Join(base, "bin")),
		os.Mkdir(filepath.Join(extra, "private"), 0o700),
		writeFile(filepath.Join(extra, "private", "kubelet"), []byte("k"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	layers := map[string]tree{
		"with modes": {{from: base, modes: true, skip: below("proc")}},
		"laid over":  {{from: extra, to: "opt/lab"}, {from: filepath.Join(extra, "private", "kubelet"), to: "usr/bin/kubelet"}},
	}
	want := map[string]string{
		"with modes": `2 0777 bin -> usr/bin
5 0755 proc/
5 0700 root/
5 0755 usr/
5 0755 usr/bin/
0 0755 usr/bin/tool "x"
1 0755 usr/bin/twin -> usr/bin/tool
`,
		// Every directory has an entry, whatever umask the user has.
		"laid over": `5 0755 opt/
5 0755 opt/lab/
5 0755 opt/lab/private/
0 0755 opt/lab/private/kubelet "k"
5 0755 usr/
5 0755 usr/bin/
0 0755 usr/bin/kubelet "k"
`,
	}
	for name, files := range layers {
		t.Run(name, func(t *testing.T) {
			var first, second bytes.Buffer
			for _, w := range []*bytes.Buffer{&first, &second} {
				if err := files.writeTar(w); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(first.Bytes(), second.Bytes()) {
				t.Error("packing twice gives different bytes")
			}
			if diff := cmp.Diff(want[name], listing(t, first.Bytes())); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}

			// The layer says of itself what can be measured on its bytes.
			l := &layer{tree: files}
			digest, err := l.Digest()
			if err != nil {
				t.Fatal(err)
			}
			size, err := l.Size()
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(first.Bytes())
			if digest.Hex != hex.EncodeToString(sum[:]) || size != int64(first.Len()) {
				t.Errorf("layer says %s, %d bytes", digest, size)
			}
		})
	}
}

func TestTreeThatIsNotThere(t *testing.T) {
	missing := tree{{from: filepath.Join(t.TempDir(), "missing")}}
	if err := missing.writeTar(io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if _, err := (&layer{tree: missing}).Digest(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("digest: error is %v", err)
	}
}
