package simulated

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/driver/api"
)

// maxProcesses bounds the files that are looked at; stillborn is how long a
// file may be empty before its process is taken for dead.
const (
	maxProcesses = 1024
	stillborn    = 10 * time.Second
)

// processes lists those that hold their files, and removes the files of those
// that died. The directory is written by containers: nothing in it is followed,
// and what does not look like a process is ignored.
func (s site) processes() []api.Process {
	dir, err := os.Open(s.processesDir())
	if err != nil {
		return nil
	}
	defer dir.Close()
	// An error in the middle leaves what was listed before it.
	entries, _ := dir.ReadDir(maxProcesses)
	var alive []api.Process
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || !e.Type().IsRegular() {
			continue
		}
		if p, ok := readProcess(filepath.Join(s.processesDir(), e.Name())); ok {
			alive = append(alive, p)
		}
	}
	return alive
}

// readProcess gives the process of a file if it is alive.
func readProcess(path string) (api.Process, bool) {
	// Neither follow a link nor wait for a pipe that took the file's place.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return api.Process{}, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return api.Process{}, false
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		// Nobody holds it. A process that has only just made its file has not
		// written it yet.
		if info.Size() > 0 || time.Since(info.ModTime()) > stillborn {
			_ = os.Remove(path)
		}
		return api.Process{}, false
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return api.Process{}, false
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return api.Process{}, false
	}
	p, err := api.ParseProcess(data)
	return p, err == nil
}
