package host

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Environment variables that move the lab's directories, for tests and for
// machines whose home is small. All three together give a lab that knows
// nothing of another one on the same machine.
const (
	CacheEnv = "DRA_LAB_CACHE"
	StateEnv = "DRA_LAB_STATE"
	RunEnv   = "DRA_LAB_RUN"
)

const defaultRunDir = "/run/dra-lab"

// CacheDir returns the directory for what can be made again at a cost: the
// private engine's images, build caches. It is $DRA_LAB_CACHE, or dra-lab in
// the user's cache directory. It need not exist yet.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		// Cron, CI and containers may run without HOME; root's is known.
		if home, ok := rootHome(); ok {
			return filepath.Join(home, ".cache", "dra-lab"), nil
		}
		return "", fmt.Errorf("find cache directory (or set %s): %w", CacheEnv, err)
	}
	return filepath.Join(base, "dra-lab"), nil
}

// StateDir returns the directory for what belongs to labs that exist now:
// kubeconfigs, shared volumes, locks. It is $DRA_LAB_STATE, or
// ~/.local/state/dra-lab. It need not exist yet.
func StateDir() (string, error) {
	if dir := os.Getenv(StateEnv); dir != "" {
		return filepath.Abs(dir)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		var ok bool
		if home, ok = rootHome(); !ok {
			return "", fmt.Errorf("find state directory (or set %s): %w", StateEnv, err)
		}
	}
	return filepath.Join(home, ".local", "state", "dra-lab"), nil
}

func rootHome() (string, bool) { return "/root", os.Geteuid() == 0 }

// runDir is where the private engine has its sockets: $DRA_LAB_RUN, or
// /run/dra-lab. A reboot empties it, as it should.
func runDir() (string, error) {
	if dir := os.Getenv(RunEnv); dir != "" {
		return filepath.Abs(dir)
	}
	return defaultRunDir, nil
}

// bridgePrefix is how the names of all network interfaces begin that belong to
// the private engine in runDir. A run directory of one's own means interfaces
// of one's own. With a digit behind it, it stays below the kernel's 15 bytes.
func bridgePrefix(runDir string) string {
	if runDir == defaultRunDir {
		return "dralab"
	}
	sum := sha256.Sum256([]byte(runDir))
	return "dl" + hex.EncodeToString(sum[:3]) + "x"
}
