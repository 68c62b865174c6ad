package nodeimage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// The texts are debootstrap's.
func TestClassifyDebianError(t *testing.T) {
	failed := errors.New("debootstrap: exit status 1")
	for name, test := range map[string]struct {
		output    string
		noNetwork bool
	}{
		"no mirror":          {"I: Retrieving InRelease\nE: Failed getting release file http://mirror.example/debian/dists/bookworm/Release\n", true},
		"lost on the way":    {"I: Retrieving dpkg 1.21.22\nE: Couldn't download packages: dpkg\n", true},
		"no such package":    {"E: Couldn't find these debs: nosuch\n", false},
		"installation fails": {"I: Configuring systemd...\nW: Failure while configuring base packages.\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := classifyDebianError(failed, test.output)
			if got := errors.Is(err, ErrNoNetwork); got != test.noNetwork {
				t.Errorf("out of reach: %t, want %t (%v)", got, test.noNetwork, err)
			}
			if ui.Detail(err) != test.output {
				t.Errorf("detail is %q", ui.Detail(err))
			}
		})
	}
}

// Nothing of what Debian enables by itself is left to start, and what belongs
// to the host that the image was built on is gone.
func TestRootIsTrimmed(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{
		"lib/systemd/system/multi-user.target.wants/getty.target",
		"lib/systemd/system/sockets.target.wants/systemd-udevd-control.socket",
		"lib/systemd/system/sockets.target.wants/dbus.socket",
		"etc/systemd/system/timers.target.wants/apt-daily.timer",
		"usr/share/doc/bash/README", "usr/share/doc/bash/copyright",
		"etc/hostname", "var/log/dpkg.log",
	} {
		if err := writeFile(filepath.Join(root, path), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(slim(root), trimUnits(root)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"lib/systemd/system/multi-user.target.wants/getty.target":              false,
		"lib/systemd/system/sockets.target.wants/systemd-udevd-control.socket": false,
		"lib/systemd/system/sockets.target.wants/dbus.socket":                  true,
		"etc/systemd/system/timers.target.wants/apt-daily.timer":               false,
		"usr/share/doc/bash/README":                                            false,
		"usr/share/doc/bash/copyright":                                         true,
		"var/log/dpkg.log":                                                     false,
	} {
		if _, err := os.Lstat(filepath.Join(root, path)); (err == nil) != want {
			t.Errorf("%s is there: %t", path, err == nil)
		}
	}
	if hostname, err := os.ReadFile(filepath.Join(root, "etc/hostname")); err != nil || len(hostname) > 0 {
		t.Errorf("hostname is %q, %v", hostname, err)
	}
}
