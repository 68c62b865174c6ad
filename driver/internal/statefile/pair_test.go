package statefile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

func openPair(t *testing.T, base string) *statefile.Pair {
	t.Helper()
	p, err := statefile.OpenPair(base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func load(t *testing.T, p *statefile.Pair) string {
	t.Helper()
	var d document
	found, err := p.Load("v1", &d)
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return "nothing"
	}
	return d.Text
}

func store(t *testing.T, p *statefile.Pair, text string, promise statefile.Promise) {
	t.Helper()
	if err := p.Store("v1", document{text}, promise); err != nil {
		t.Fatal(err)
	}
}

func TestPairGivesTheNewestDocument(t *testing.T) {
	base := filepath.Join(t.TempDir(), "state")
	p := openPair(t, base)
	if got := load(t, p); got != "nothing" {
		t.Errorf("a new pair has %q", got)
	}
	// Whatever order of promises and sizes.
	big := strings.Repeat("b", 100_000)
	for _, text := range []string{"1", "2", big, "4", "5", "6", big + big, "8"} {
		for _, promise := range []statefile.Promise{statefile.Kept, statefile.Durable, statefile.Kept, statefile.Kept} {
			store(t, p, text, promise)
			if got := load(t, openPair(t, base)); got != text {
				t.Fatalf("got %.10q, want %.10q", got, text)
			}
		}
	}
}

// cut is what the disk has of a write that did not get through: its beginning,
// or any other part.
func cut(before, after []byte, keep func(i int) bool) []byte {
	size := max(len(before), len(after))
	torn := bytes.Repeat([]byte(" "), size)
	copy(torn, before)
	for i := range after {
		if keep(i / 512) {
			torn[i] = after[i]
		}
	}
	return torn
}

func TestWriteThatIsCutOffLeavesTheLastDurableDocument(t *testing.T) {
	// Documents that differ in every sector.
	long := func(letter string) string { return strings.Repeat(letter, 3000) }
	for _, tc := range []struct {
		name    string
		history func(*statefile.Pair)
		want    string
	}{
		{"after a durable one", func(p *statefile.Pair) { store(t, p, long("a"), statefile.Durable) }, long("a")},
		{"after two durable ones", func(p *statefile.Pair) {
			store(t, p, long("a"), statefile.Durable)
			store(t, p, long("b"), statefile.Durable)
		}, long("b")},
		{"after one that was only kept", func(p *statefile.Pair) {
			store(t, p, long("a"), statefile.Durable)
			store(t, p, long("b"), statefile.Kept)
			store(t, p, long("c"), statefile.Kept)
		}, long("a")},
	} {
		for name, keep := range map[string]func(int) bool{
			"nothing written": func(int) bool { return false },
			"beginning":       func(sector int) bool { return sector < 3 },
			"end":             func(sector int) bool { return sector >= 3 },
			"middle missing":  func(sector int) bool { return sector != 2 },
		} {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				base := filepath.Join(t.TempDir(), "state")
				p := openPair(t, base)
				load(t, p)
				tc.history(p)
				// Given the files before and after the next write,
				before := [2][]byte{read(t, base+"-a.json"), read(t, base+"-b.json")}
				kept := load(t, openPair(t, base))
				store(t, p, long("n"), statefile.Durable)
				for i, name := range []string{base + "-a.json", base + "-b.json"} {
					after := read(t, name)
					if bytes.Equal(before[i], after) {
						continue
					}
					// when only a part of it has reached the disk,
					if err := os.WriteFile(name, cut(before[i], after, keep), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				// then the last durable document is there, or the one that
				// was kept if that was not touched yet.
				if got := load(t, openPair(t, base)); got != tc.want && got != kept {
					t.Errorf("got %.10q, want %.10q", got, tc.want)
				}
				// And it goes on from there.
				again := openPair(t, base)
				load(t, again)
				store(t, again, "on", statefile.Durable)
				if got := load(t, openPair(t, base)); got != "on" {
					t.Errorf("afterwards got %.10q", got)
				}
			})
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestTwoProcessesWriteAPair(t *testing.T) {
	base := filepath.Join(t.TempDir(), "state")
	a, b := openPair(t, base), openPair(t, base)
	load(t, a)
	load(t, b)
	// Given one that writes, then the other notices, every single time,
	for i, promise := range []statefile.Promise{statefile.Durable, statefile.Kept, statefile.Kept, statefile.Durable, statefile.Durable, statefile.Kept} {
		text := strings.Repeat("x", i%2)
		store(t, a, text, promise)
		if changed, err := b.Changed(); err != nil || !changed {
			t.Errorf("write %d was not noticed: %v", i, err)
		}
		if got := load(t, b); got != text {
			t.Errorf("write %d: got %q", i, got)
		}
		if changed, err := b.Changed(); err != nil || changed {
			t.Errorf("after write %d was read: changed %v, %v", i, changed, err)
		}
		if changed, err := a.Changed(); err != nil || changed {
			t.Errorf("the writer of %d does not know its own writing: %v", i, err)
		}
		a, b = b, a
	}
}

func TestPairThatIsDamagedIsNotEmpty(t *testing.T) {
	base := filepath.Join(t.TempDir(), "state")
	p := openPair(t, base)
	load(t, p)
	store(t, p, "a", statefile.Durable)
	store(t, p, "b", statefile.Durable)
	damage := func(name, content string) {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var d document
	damage(base+"-a.json", "{")
	damage(base+"-b.json", "{")
	if _, err := openPair(t, base).Load("v1", &d); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
	// A whole document of a version that is not understood is not passed over
	// for an older one that is.
	damage(base+"-a.json", `{"v2":{"checksum":"sha256:1","sequence":9,"data":{}}}`)
	if _, err := openPair(t, base).Load("v1", &d); !errors.Is(err, statefile.ErrVersion) {
		t.Errorf("got %v, want ErrVersion", err)
	}
}

func BenchmarkStore(b *testing.B) {
	for name, promise := range map[string]statefile.Promise{"kept": statefile.Kept, "durable": statefile.Durable} {
		b.Run(name, func(b *testing.B) {
			p, err := statefile.OpenPair(filepath.Join(b.TempDir(), "state"))
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			for b.Loop() {
				if err := p.Store("v1", document{"text"}, promise); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestFileThatIsNotOfAPairIsNotEmpty(t *testing.T) {
	base := filepath.Join(t.TempDir(), "state")
	openPair(t, base)
	if err := statefile.Write(t.Context(), base+"-a.json", "v1", document{"a"}); err != nil {
		t.Fatal(err)
	}
	var d document
	if found, err := openPair(t, base).Load("v1", &d); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("got %v, %v, want ErrCorrupt", found, err)
	}
}

func TestDocumentThatWasReadSurvivesTheMachine(t *testing.T) {
	base := filepath.Join(t.TempDir(), "state")
	// Given a writer that dies after it has written, and before the disk has
	// what it promised,
	writer := openPair(t, base)
	load(t, writer)
	store(t, writer, "a", statefile.Durable)
	writer.OnSync(func(*os.File) error { return errors.New("killed") })
	if err := writer.Store("v1", document{"b"}, statefile.Durable); err == nil {
		t.Fatal("no error")
	}
	// when another one finds the document,
	var synced []string
	reader := openPair(t, base)
	reader.OnSync(func(f *os.File) error {
		synced = append(synced, filepath.Base(f.Name()))
		return nil
	})
	if got := load(t, reader); got != "b" {
		t.Errorf("got %q", got)
	}
	// then the disk has it before anybody relies on it.
	if !slices.Contains(synced, "state-b.json") {
		t.Errorf("synced: %v", synced)
	}
}
