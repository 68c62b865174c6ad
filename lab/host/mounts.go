package host

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountsBelow returns the mount points at and below the directories, the
// deepest and latest first, which is the order to unmount them in.
func mountsBelow(dirs ...string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	points, err := parseMounts(f)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var below []string
	for _, point := range points {
		if slices.ContainsFunc(dirs, func(dir string) bool {
			return point == dir || strings.HasPrefix(point, dir+"/")
		}) {
			below = append(below, point)
		}
	}
	slices.Reverse(below)
	return below, nil
}

// parseMounts returns the mount points of a mountinfo table in its order.
func parseMounts(table io.Reader) ([]string, error) {
	var points []string
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20) // overlay mounts have long lines
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		points = append(points, unescapeOctal(fields[4]))
	}
	return points, lines.Err()
}

// unescapeOctal undoes what the kernel does to blanks: "a\040b" is "a b".
func unescapeOctal(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// unmountBelow unmounts everything at and below the directories.
func unmountBelow(dirs ...string) error {
	points, err := mountsBelow(dirs...)
	if err != nil {
		return err
	}
	var errs error
	for _, point := range points {
		// Lazily: the processes that used it have ended or are ending.
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = errors.Join(errs, fmt.Errorf("unmount %q: %w", point, err))
		}
	}
	return errs
}

// removeTree deletes a directory with everything in it, unless something is
// still mounted there: that would be deleted too.
func removeTree(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("remove directory %q: %q is still mounted", dir, points[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove directory %q: %w", dir, err)
	}
	return nil
}
