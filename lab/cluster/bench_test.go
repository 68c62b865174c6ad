package cluster

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

// BenchmarkKindAlone is what `lab up` is compared with (scripts/bench.sh): kind's
// library makes a cluster from the plan of a default lab, and nothing else
// happens. As `kind create cluster` does, it ends before the nodes are ready.
// It runs where DRA_LAB_BENCH_IMAGE names a node image that the engine has.
func BenchmarkKindAlone(b *testing.B) {
	ref := os.Getenv("DRA_LAB_BENCH_IMAGE")
	if ref == "" {
		b.Skip("SKIPPED: DRA_LAB_BENCH_IMAGE is not set")
	}
	ctx, u := b.Context(), ui.New(io.Discard, io.Discard, 0)
	engine, err := host.EnsureEngine(ctx, u)
	if err != nil {
		b.Fatal(err)
	}
	for _, assignment := range engine.Env() {
		key, value, _ := strings.Cut(assignment, "=")
		b.Setenv(key, value)
	}
	b.Setenv("DRA_LAB_STATE", b.TempDir())
	image, err := nodeimage.Inspect(ctx, engine, ref)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		m, err := newMaker(ctx, Options{Name: "dra-lab-t-bench", Image: image, Restrictions: engine.Restrictions}, u)
		if err == nil {
			err = m.found.dir.prepare(m.additions)
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		err = m.runKind(ctx, m.engine.kindProvider(newLogger(u)))
		b.StopTimer()
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		if removed := Remove(clean, m.Name, u); removed != nil {
			b.Error(removed)
		}
		cancel()
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
