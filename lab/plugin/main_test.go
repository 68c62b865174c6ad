package plugin_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dra-lab/dra-lab/lab/plugin"
)

func TestMain(m *testing.M) {
	// The relay copies this executable into the node of these tests.
	if len(os.Args) > 1 && os.Args[1] == plugin.RelayVerb {
		os.Exit(plugin.RelayMain(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
