// Package nvmltest makes a library libnvidia-ml.so.1 that needs no hardware, for
// tests that go through the real go-nvml. What it answers is a text; library/nvml.c says
// in which form.
package nvmltest

import (
	_ "embed" // for the source
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/driver/driverroot"
)

//go:embed library/nvml.c
var source []byte

// Env is the environment variable with the file that the library reads. Without
// it, the library answers what it was built with.
const Env = "DRA_LAB_NVML"

// OldDriver builds the library of an older driver, which lacks functions.
const OldDriver = "OLD_DRIVER"

// Build compiles the library to path. It answers with description where Env is
// not set. Macros are defined for the compiler.
func Build(tb testing.TB, path, description string, macros ...string) {
	tb.Helper()
	if err := Compile(path, description, macros...); err != nil {
		tb.Fatal(err)
	}
}

// Compile is Build for callers that have no testing.TB.
func Compile(path, description string, macros ...string) error {
	// Compiled with the header that go-nvml was made from, so that no function
	// has another form than there.
	out, err := exec.Command("go", "list", "-find", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		return fmt.Errorf("find NVML's header: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-Wl,-soname," + driverroot.NVML,
		"-I" + strings.TrimSpace(string(out)), "-o", path, "-x", "c", "-DDESCRIPTION=" + strconv.Quote(description)}
	for _, m := range macros {
		args = append(args, "-D"+m)
	}
	cmd := exec.Command(compiler, append(args, "-")...)
	cmd.Stdin = strings.NewReader(string(source))
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile a library like NVIDIA's: %w\n%s", err, said)
	}
	return nil
}

// Root makes what a node has: the library and the device nodes of GPUs with
// these minor numbers. It returns the root and the file that the library reads,
// whose content is description.
func Root(tb testing.TB, description string, minors []int, macros ...string) (root, file string) {
	tb.Helper()
	root = tb.TempDir()
	Build(tb, driverroot.Library(root, driverroot.NVML), "", macros...)
	write := func(path, text string) {
		tb.Helper()
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	for i, name := range driverroot.SharedNodes() {
		write(driverroot.Device(root, name), fmt.Sprintf("c 510 %d\n", i))
	}
	for _, m := range minors {
		write(driverroot.Device(root, driverroot.GPUNode(m)), fmt.Sprintf("c 195 %d\n", m))
	}
	file = filepath.Join(root, "description")
	Describe(tb, file, description)
	tb.Setenv(Env, file)
	return root, file
}

// Describe replaces what the library answers, whole.
func Describe(tb testing.TB, file, description string) {
	tb.Helper()
	err := os.WriteFile(file+".tmp", []byte(description), 0o644)
	if err == nil {
		err = os.Rename(file+".tmp", file)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// inProcess is set to the name of the test for which a process was started.
const inProcess = "DRA_LAB_NVML_TEST"

// Alone runs body in a process of its own: go-nvml binds a library's functions
// for the life of a process, so one that has used a library can use no other.
func Alone(t *testing.T, body func(*testing.T)) {
	t.Helper()
	if os.Getenv(inProcess) == t.Name() {
		body(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.timeout=2m", "-test.run="+strings.Join(pattern, "/"))
	cmd.Env = append(os.Environ(), inProcess+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("in a process of its own: %v\n%s", err, out)
	}
}
