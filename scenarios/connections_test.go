// Scenario connections: a lazy connection to a DRA plugin fails in four ways in
// which an eager one does not.
//
// Given a plugin server on a Unix socket, when clients of both kinds meet a
// first use by many goroutines, a restart, an absent plugin and thousands of
// reconnects, then the table says what each did, and it is what was to be
// expected. It needs no cluster; the lazy client is a model, see
// scenarios/connections.

package scenarios

import (
	"context"
	"os"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/scenarios/connections"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

func TestConnections(t *testing.T) {
	if os.Getenv(stage.EnvCluster) == "" && os.Getenv(stage.EnvKubeconfig) == "" {
		t.Skip("run by lab run; the package scenarios/connections has tests of its own")
	}
	var options connections.Options
	if testing.Short() {
		options = connections.Options{Rounds: 20, Reconnects: 1000}
	}
	// Interrupted, it leaves no sockets behind.
	stage.Interruptible(t, func(ctx context.Context) {
		environment, err := env.NewWithContext(ctx, envconf.New())
		if err != nil {
			t.Fatal(err)
		}
		environment.Test(t, features.New("connections").
			Assess("lazy and eager do what the table says", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
				report, err := connections.Run(ctx, options)
				if err != nil {
					t.Fatal(err)
				}
				if err := report.WriteText(os.Stdout); err != nil {
					t.Fatal(err)
				}
				for _, d := range report.Deviations() {
					t.Error(d)
				}
				return ctx
			}).Feature())
	})
}
