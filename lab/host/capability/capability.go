// Package capability reads which Linux capabilities this process, and
// everything it starts, can ever have.
//
// It only looks: it neither drops nor gains anything.
package capability

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Set is a set of capabilities, bit N standing for capability number N.
type Set uint64

// Has reports whether the set holds the capability with this name, such as
// "CAP_SYS_ADMIN". A name this package does not know counts as held: what is
// unknown here is left for the kernel to judge.
func (s Set) Has(name string) bool {
	for number, known := range names() {
		if known == name {
			return s&(1<<number) != 0
		}
	}
	return true
}

// Missing returns the names of the capabilities below and including number
// last that the set lacks, by number.
func (s Set) Missing(last int) []string {
	var missing []string
	for number, name := range names() {
		if number <= last && s&(1<<number) == 0 {
			missing = append(missing, name)
		}
	}
	return missing
}

// Bounding returns the bounding set of this process: the most that any program
// which it starts can get, setuid root or not.
func Bounding() (Set, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read capability bounding set: %w", err)
	}
	defer f.Close()
	return parseBounding(f)
}

// Last returns the number of the newest capability that the kernel knows.
func Last() (int, error) {
	text, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return 0, fmt.Errorf("read newest capability: %w", err)
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("parse newest capability: %w", err)
	}
	return last, nil
}

func parseBounding(status io.Reader) (Set, error) {
	lines := bufio.NewScanner(status)
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), "CapBnd:")
		if !ok {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return 0, fmt.Errorf("parse capability bounding set: %w", err)
		}
		return Set(bits), nil
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read capability bounding set: %w", err)
	}
	return 0, fmt.Errorf("read capability bounding set: no CapBnd line in process status")
}

// names lists the capabilities by number, as in linux/capability.h.
func names() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
		"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
		"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
		"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
		"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
		"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
		"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
		"CAP_CHECKPOINT_RESTORE",
	}
}
