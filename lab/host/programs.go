package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// systemPath lists where system programs are; a user's PATH often lacks the
// sbin directories.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findProgram returns the path of a program on PATH or in the system's usual
// directories, or "".
func findProgram(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		if abs, err := filepath.Abs(path); err == nil {
			return abs
		}
	}
	for _, dir := range filepath.SplitList(systemPath) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// daemonEnv is the environment for a background process: ours without what
// would point it at another engine or at our terminal's session, and with the
// system directories in PATH.
func daemonEnv(environ []string) []string {
	kept := make([]string, 0, len(environ)+1)
	path := systemPath
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case name == "PATH":
			path = value + ":" + systemPath
		case strings.HasPrefix(name, "DOCKER_"), strings.HasPrefix(name, "CONTAINERD_"),
			name == "NOTIFY_SOCKET", name == "LISTEN_FDS", name == "LISTEN_PID", name == "INVOCATION_ID":
		default:
			kept = append(kept, entry)
		}
	}
	return append(kept, "PATH="+path)
}
