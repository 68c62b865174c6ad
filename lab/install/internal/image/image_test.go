package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dra-lab/dra-lab/lab/install/internal/image"
)

// compile builds a C program and returns its path. Machines that build the
// driver have a C compiler, as it needs cgo.
func compile(t *testing.T, out, source string, flags ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: nothing to build test programs with")
	}
	directory := filepath.Dir(out)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	file := out + ".c"
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-o", out, file}, flags...)
	if output, err := exec.CommandContext(t.Context(), compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, output)
	}
	return out
}

const hello = `#include <stdio.h>
int main(void) { puts("hello"); return 0; }`

func TestClosureOfADynamicProgramRunsItAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot change the root directory")
	}
	// Given a program with shared libraries,
	program := compile(t, filepath.Join(t.TempDir(), "hello"), hello+`
#include <math.h>
double f(double x) { return sin(x); }`, "-Wl,--no-as-needed", "-lm")

	// when its closure is put into an otherwise empty root,
	files, err := image.Closure(program)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, f := range append(slices.Clone(files), program) {
		target := filepath.Join(root, f)
		if f == program {
			target = filepath.Join(root, "hello")
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, data, 0o755); err != nil { //nolint:gosec // a program has to be executable
			t.Fatal(err)
		}
	}

	// then it runs there, and the closure names loader, libc and libm.
	output, err := exec.CommandContext(t.Context(), "chroot", root, "/hello").CombinedOutput()
	if err != nil || string(output) != "hello\n" {
		t.Fatalf("run in %v: %v, output %q", files, err, output)
	}
	for _, want := range []string{"ld-linux", "libc.so", "libm.so"} {
		if !slices.ContainsFunc(files, func(f string) bool { return strings.Contains(f, want) }) {
			t.Errorf("closure %v lacks %s", files, want)
		}
	}
}

func TestClosureOfAStaticProgramIsEmpty(t *testing.T) {
	program := compile(t, filepath.Join(t.TempDir(), "hello"), hello, "-static")
	files, err := image.Closure(program)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 0 {
		t.Errorf("closure: %v, want none", files)
	}
}

func TestClosureFollowsRunpathAndIndirectLibraries(t *testing.T) {
	// Given program -> liba (found by $ORIGIN) -> libb (found by liba's own),
	directory := t.TempDir()
	compile(t, filepath.Join(directory, "lib", "libb.so"), `int b(void) { return 2; }`, "-shared", "-fPIC")
	compile(t, filepath.Join(directory, "lib", "liba.so"), `int b(void); int a(void) { return b(); }`,
		"-shared", "-fPIC", "-L"+filepath.Join(directory, "lib"), "-lb", "-Wl,-rpath,$ORIGIN")
	program := compile(t, filepath.Join(directory, "main"), `int a(void); int main(void) { return a(); }`,
		"-L"+filepath.Join(directory, "lib"), "-la", "-Wl,-rpath,$ORIGIN/lib", "-Wl,-rpath-link,"+filepath.Join(directory, "lib"))

	files, err := image.Closure(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{filepath.Join(directory, "lib", "liba.so"), filepath.Join(directory, "lib", "libb.so")} {
		if !slices.Contains(files, want) {
			t.Errorf("closure %v lacks %s", files, want)
		}
	}

	// when one of them is gone, then the error names it and who wants it.
	if err := os.Remove(filepath.Join(directory, "lib", "libb.so")); err != nil {
		t.Fatal(err)
	}
	_, err = image.Closure(program)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), `find "libb.so" for "`+filepath.Join(directory, "lib", "liba.so")) {
		t.Errorf("error %v, want one that names libb.so and liba.so", err)
	}
}

func TestClosureRefusesWhatIsNoProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Closure(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names %s", err, file)
	}
}

func write(t *testing.T, i *image.Image) []byte {
	t.Helper()
	var buffer bytes.Buffer
	if err := image.Write(&buffer, i); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestBuildIsDeterministic(t *testing.T) {
	// Given the same program twice, with other dates, modes and directories,
	first := compile(t, filepath.Join(t.TempDir(), "hello"), hello)
	data, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(second, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(second, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}

	// when both are built, then reference and bytes are the same.
	a, err := image.Build("docker.io/dra-lab/hello", first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := image.Build("docker.io/dra-lab/hello", second)
	if err != nil {
		t.Fatal(err)
	}
	if a.Ref() != b.Ref() {
		t.Errorf("references %s and %s, want the same", a.Ref(), b.Ref())
	}
	if !bytes.Equal(write(t, a), write(t, b)) || !bytes.Equal(write(t, a), write(t, a)) {
		t.Error("archives differ, want the same bytes")
	}

	// And when the program changes, so does the reference.
	if err := os.WriteFile(second, append(data, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := image.Build("docker.io/dra-lab/hello", second)
	if err != nil {
		t.Fatal(err)
	}
	if c.Ref() == a.Ref() {
		t.Errorf("reference %s for another program, want another one", c.Ref())
	}
}

func TestArchiveHoldsProgramAndLibraries(t *testing.T) {
	program := compile(t, filepath.Join(t.TempDir(), "hello"), hello)
	built, err := image.Build("docker.io/dra-lab/hello", program)
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := image.Closure(program)
	if err != nil {
		t.Fatal(err)
	}

	// When the archive is read back as an image,
	data := write(t, built)
	loaded, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}

	// then it runs the program,
	config, err := loaded.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/hello"}, config.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint (-want +got):\n%s", diff)
	}
	// and its files are the program and its closure, owned by root.
	layers, err := loaded.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if len(layers) != 1 {
		t.Fatalf("%d layers, want 1", len(layers))
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var got []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Mode != 0o755 {
			t.Errorf("%s: owner %d, mode %o, want 0 and 755", header.Name, header.Uid, header.Mode)
		}
		if header.Typeflag == tar.TypeReg {
			got = append(got, "/"+header.Name)
		}
	}
	want := append(slices.Clone(libraries), "/hello")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
