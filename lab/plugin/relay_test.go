package plugin_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/lab/plugin"
)

func TestRelayIsCopiedOnce(t *testing.T) {
	// Given a node that has the relay of a lab of yesterday, and a copy that
	// somebody else is making,
	n := newNode(t)
	bin := filepath.Join(n.dir, "var/lib/dra-lab/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	old, unfinished := filepath.Join(bin, "relay-1-1"), filepath.Join(bin, "relay-2-2.77")
	for name, age := range map[string]time.Duration{old: 25 * time.Hour, unfinished: 0} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		made := time.Now().Add(-age)
		if err := os.Chtimes(name, made, made); err != nil {
			t.Fatal(err)
		}
	}
	// when two labs use it,
	copies := 0
	for range 2 {
		relay := plugin.NewRelay(func(ctx context.Context, argv ...string) *exec.Cmd {
			if argv[0] == "sh" {
				copies++
			}
			return n.command(ctx, argv...)
		}, "")
		if _, err := relay.Sockets(testContext(t), n.registry()); err != nil {
			t.Fatal(err)
		}
		if err := relay.Close(); err != nil {
			t.Error(err)
		}
	}
	// then it was copied once, in place of the old one.
	if copies != 1 {
		t.Errorf("copies: got %d, want 1", copies)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old relay: got %v, want it to be gone", err)
	}
	if _, err := os.Stat(unfinished); err != nil {
		t.Errorf("somebody else's copy: %v", err)
	}
	if entries, err := os.ReadDir(bin); err != nil || len(entries) != 2 {
		t.Errorf("files: got %v, %v, want two", entries, err)
	}
}

func TestRelayThatIsCutOffIsCopiedAgain(t *testing.T) {
	// Given a lab that is interrupted while it copies its relay: the command in
	// the node sees the end of its input,
	n := newNode(t)
	interrupted := plugin.NewRelay(func(ctx context.Context, argv ...string) *exec.Cmd {
		cmd := n.command(ctx, argv...)
		if argv[0] == "sh" {
			cmd.Args[2] = "head -c 100000 | " + strings.TrimPrefix(cmd.Args[2], "exec ")
		}
		return cmd
	}, "")
	_, err := interrupted.Sockets(testContext(t), n.registry())
	if err == nil || !strings.Contains(err.Error(), "copy relay into the node") {
		t.Errorf("got %v, want an error about the copy", err)
	}
	if err := interrupted.Close(); err != nil {
		t.Error(err)
	}
	// when another lab comes, then it is not misled by what is there.
	relay := plugin.NewRelay(n.command, "")
	if _, err := relay.Sockets(testContext(t), n.registry()); err != nil {
		t.Error(err)
	}
	if err := relay.Close(); err != nil {
		t.Error(err)
	}
}

func TestNodeThatIsGone(t *testing.T) {
	gone := func(ctx context.Context, _ ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "echo some line >&2; echo no such container >&2; exit 1")
	}
	relay := plugin.NewRelay(gone, "")
	defer func() {
		if err := relay.Close(); err != nil {
			t.Error(err)
		}
	}()
	const want = "copy relay into the node: exit status 1: no such container"
	if _, err := relay.Sockets(testContext(t), "/x"); err == nil || err.Error() != want {
		t.Errorf("sockets: got %v, want %s", err, want)
	}
	if _, err := relay.Dial(testContext(t), "/x"); err == nil || err.Error() != want {
		t.Errorf("dial: got %v, want %s", err, want)
	}
}

func TestNodeThatGoesAway(t *testing.T) {
	// Given a node in which the relay is, when it cannot be started any more,
	// then dialing says what the engine says.
	n := newNode(t)
	broken := false
	relay := plugin.NewRelay(func(ctx context.Context, argv ...string) *exec.Cmd {
		if broken {
			return exec.CommandContext(ctx, "sh", "-c", "echo container is not running >&2; exit 1")
		}
		return n.command(ctx, argv...)
	}, "")
	defer func() {
		if err := relay.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := relay.Sockets(testContext(t), n.registry()); err != nil {
		t.Fatal(err)
	}
	broken = true
	if _, err := relay.Dial(testContext(t), "/x"); err == nil || !strings.HasSuffix(err.Error(), "container is not running") {
		t.Errorf("got %v, want what the engine says", err)
	}
}

func TestRelayThatIsGone(t *testing.T) {
	// Given a relay that has been removed from its node, when it is used, then
	// it is copied again.
	n := newNode(t)
	socket := filepath.Join(n.dir, "x.sock")
	n.start(t, socket, plugintest.Config{})
	for name, use := range map[string]func(*plugin.Relay) error{
		"sockets": func(r *plugin.Relay) error {
			_, err := r.Sockets(testContext(t), n.registry())
			return err
		},
		"dial": func(r *plugin.Relay) error {
			conn, err := r.Dial(testContext(t), socket)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			relay := plugin.NewRelay(n.command, "")
			defer func() {
				if err := relay.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := use(relay); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(n.dir, "var")); err != nil {
				t.Fatal(err)
			}
			if err := use(relay); err != nil {
				t.Errorf("without the relay: %v", err)
			}
		})
	}
}

func TestRelayClosesConnections(t *testing.T) {
	// Given connections through the relay, some of which are still being made,
	// when it is closed, then all end, and later ones are refused.
	n := newNode(t)
	socket := filepath.Join(n.dir, "x.sock")
	n.start(t, socket, plugintest.Config{})
	relay := plugin.NewRelay(n.command, "")
	first, err := relay.Dial(testContext(t), socket)
	if err != nil {
		t.Fatal(err)
	}
	if got := first.RemoteAddr(); got.Network() != "unix" || got.String() != socket {
		t.Errorf("address: got %v %v", got.Network(), got)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if conn, err := relay.Dial(testContext(t), socket); err == nil {
				_ = conn.Close()
			}
		})
	}
	if err := relay.Close(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, first); err != nil {
		t.Errorf("read: got %v, want the end", err)
	}
	wg.Wait()
	if _, err := relay.Dial(testContext(t), socket); err == nil {
		t.Error("a closed relay dials")
	}
	_ = first.Close()
}
