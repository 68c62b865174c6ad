package install

import (
	"context"
	"io"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Plainly is Install for programs other than the lab's command, which have no
// UI of it: progress goes to w.
func Plainly(ctx context.Context, c *cluster.Cluster, options Options, w io.Writer) error {
	return Install(ctx, c, options, ui.New(io.Discard, w, 0))
}
