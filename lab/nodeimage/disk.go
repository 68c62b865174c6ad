package nodeimage

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

const (
	megabyte = 1 << 20
	gigabyte = 1 << 30
)

// A need is how much room a build takes below a directory at its peak.
type need struct {
	dir   string
	bytes uint64
	what  string // completes "bytes for ..."
}

// compiling says what a build has to compile.
type compiling int

const (
	compilingNothing compiling = iota // the build cache has it all
	compilingKubelet
	compilingNode // all of Kubernetes, and what else a node has
)

// needs estimates what a build takes at its peak, from measured builds with a
// quarter on top: v1.37.2 took 8 GB in all, 1.7 GB of it sources, and left
// 3.6 GB. What an interrupted build left behind is not subtracted.
func needs(cacheDir, moduleCache, engineRoot string, what compiling) []need {
	var all []need
	add := func(dir string, bytes uint64, what string) {
		if dir != "" {
			all = append(all, need{dir, bytes, what})
		}
	}
	switch what {
	case compilingNode:
		add(cacheDir, 7*gigabyte, "compiling")
		add(moduleCache, 2*gigabyte, "sources")
	case compilingKubelet:
		add(cacheDir, 4*gigabyte, "compiling")
		add(moduleCache, 1*gigabyte, "sources")
	case compilingNothing:
	}
	// While it loads an image the engine has it twice.
	add(engineRoot, 1500*megabyte, "the image")
	return all
}

// A filesystem is one that needs are counted against.
type filesystem struct {
	id   uint64
	free uint64
}

// short returns an error if the needs do not fit on the file systems that on
// tells of. Needs on the same one add up.
func short(all []need, on func(dir string) (filesystem, error)) error {
	type sum struct {
		needed, free uint64
		dir          string
		parts        []string
	}
	sums := map[uint64]*sum{}
	for _, n := range all {
		fs, err := on(n.dir)
		if err != nil {
			return err
		}
		s := sums[fs.id]
		if s == nil {
			s = &sum{free: fs.free, dir: n.dir}
			sums[fs.id] = s
		}
		s.needed += n.bytes
		s.parts = append(s.parts, fmt.Sprintf("%s for %s", size(n.bytes), n.what))
	}
	for _, n := range all { // in the order of the needs, not of the map
		fs, err := on(n.dir)
		if err != nil {
			return err
		}
		if s := sums[fs.id]; s.needed > s.free {
			err := fmt.Errorf("build a node image: needs %s below %q, %s free", size(s.needed), s.dir, size(s.free))
			return ui.WithHint(err, "free some space (%s), or set DRA_LAB_CACHE to a directory on a larger disk",
				strings.Join(s.parts, ", "))
		}
	}
	return nil
}

// size formats bytes as people say it: "1.5 GB".
func size(bytes uint64) string {
	if bytes < gigabyte {
		return fmt.Sprintf("%d MB", bytes/megabyte)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/gigabyte)
}

// checkDisk fails before a build that would not fit, and tells how much it
// will take if that is much.
func (b *builder) checkDisk(ctx context.Context, eng Engine, what compiling) error {
	all := needs(b.cacheDir, b.tools.moduleCache(ctx), dataRoot(ctx, eng), what)
	if err := short(all, onHost); err != nil {
		return err
	}
	if what == compilingNode {
		var total uint64
		for _, n := range all {
			total += n.bytes
		}
		b.ui.Info("building a node image takes 10 to 30 minutes and up to %s of disk, of which 4 GB stay in use; "+
			"it can be interrupted and goes on where it stopped", size(total))
	}
	return nil
}

// onHost looks at the file system that dir is on, or will be.
func onHost(dir string) (filesystem, error) {
	free, err := host.FreeDisk(dir)
	if err != nil {
		return filesystem{}, err
	}
	var stat unix.Stat_t
	for {
		if err := unix.Stat(dir, &stat); err == nil {
			return filesystem{id: stat.Dev, free: free}, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return filesystem{}, fmt.Errorf("find the file system of %q", dir)
		}
		dir = parent
	}
}

// moduleCache returns the directory that Go downloads modules to, "" if it
// does not say.
func (g goTools) moduleCache(ctx context.Context) string {
	out, err := run(ctx, g.command(ctx, "", false, "env", "GOMODCACHE"), nil)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
