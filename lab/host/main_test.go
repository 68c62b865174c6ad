package host

import (
	"os"
	"testing"

	"github.com/dra-lab/dra-lab/lab/host/ociruntime"
)

// The private engine's OCI runtime is a copy of the program that starts it,
// which in these tests is the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ociruntime.Verb {
		os.Exit(ociruntime.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}
