package fault

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/dra-lab/dra-lab/driver/api"
)

// maxAttempts bounds how often an update starts again because another one came
// in between. Each time one of the others got through, so this many have to be
// at work on one GPU at once before any gives up.
const maxAttempts = 50

// node is what this package needs of a node: to run commands in it, and to start
// it anew.
type node interface {
	Name() string
	ControlPlane() bool
	Restart(ctx context.Context) error
	Exec(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error)
}

// store is the simulated hardware of one node, seen from outside.
type store struct {
	node      node
	directory string // api.HardwareDir, or another one in tests
}

// hardware is a snapshot of a node's simulated hardware. Files are consistent
// each for itself.
type hardware struct {
	simulated bool     // false: the node has no simulated GPUs
	devices   []string // by index
	profiles  []string // of the devices
	files     map[string][]byte
}

// readScript prints one line per file: its name and its content in base64.
// Each file is opened once, so that a replacement at the same time gives the
// old or the new content, never half of both.
const readScript = `cd "$1" 2>/dev/null || exit 0
for f in inventory.json */faults.json; do
	[ -f "$f" ] || continue
	printf '%s ' "$f" && base64 -w0 "$f" && echo || exit 1
done`

func (s store) read(ctx context.Context) (hardware, error) {
	out, err := s.node.Exec(ctx, nil, "sh", "-c", readScript, "sh", s.directory)
	if err != nil {
		return hardware{}, fmt.Errorf("read simulated GPUs of node %q: %w", s.node.Name(), err)
	}
	hw := hardware{files: map[string][]byte{}}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, encoded, _ := strings.Cut(lines.Text(), " ")
		content, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return hardware{}, fmt.Errorf("read %s on node %q: %w", path.Join(s.directory, name), s.node.Name(), err)
		}
		if name != api.InventoryName {
			hw.files[path.Dir(name)] = content
			continue
		}
		inventory, err := api.ParseInventory(content)
		if err != nil {
			return hardware{}, fmt.Errorf("read %s on node %q: %w", path.Join(s.directory, name), s.node.Name(), err)
		}
		hw.simulated = true
		hw.profiles = inventory.Profiles()
		for i := range hw.profiles {
			hw.devices = append(hw.devices, api.DeviceName(i))
		}
	}
	if err := lines.Err(); err != nil {
		return hardware{}, fmt.Errorf("read simulated GPUs of node %q: %w", s.node.Name(), err)
	}
	return hw, nil
}

// writeScript replaces the faults of a GPU if they still are those that the
// caller saw. The lock keeps out others who do the same; the length tells a
// caller that was killed half-way from one that said everything.
const writeScript = `set -eu
directory=$1 seen=$2 length=$3
mkdir -p "$directory"
exec 9>>"$directory/.faults.lock"
flock -w 10 9
have=none
[ ! -f "$directory/faults.json" ] || have=$(sha256sum <"$directory/faults.json" | cut -d' ' -f1)
if [ "$have" != "$seen" ]; then echo conflict; exit 0; fi
new=$directory/.faults.json.$$
trap 'rm -f "$new"' EXIT
cat >"$new"
if [ "$(wc -c <"$new")" != "$length" ]; then echo "input was cut off" >&2; exit 1; fi
sync "$new"
mv "$new" "$directory/faults.json"
echo stored`

// errConflict says that somebody else changed the faults in between.
var errConflict = errors.New("the faults changed meanwhile")

// replace writes the faults of device, provided that their file still has the
// content seen (nil: no file); else it returns errConflict.
func (s store) replace(ctx context.Context, device string, seen, content []byte) error {
	hash := "none"
	if seen != nil {
		sum := sha256.Sum256(seen)
		hash = hex.EncodeToString(sum[:])
	}
	out, err := s.node.Exec(ctx, bytes.NewReader(content), "sh", "-c", writeScript, "sh",
		path.Join(s.directory, device), hash, strconv.Itoa(len(content)))
	if err != nil {
		return fmt.Errorf("write faults of %s on node %q: %w", device, s.node.Name(), err)
	}
	switch strings.TrimSpace(string(out)) {
	case "stored":
		return nil
	case "conflict":
		return errConflict
	}
	return fmt.Errorf("write faults of %s on node %q: unexpected answer %q", device, s.node.Name(), out)
}

// update changes the faults of device with change, which gets them as they are
// and returns them as they are to be, or false to leave them. It starts again
// when others change them at the same time, so change may run several times.
func (s store) update(ctx context.Context, hw hardware, device string, change func([]api.Fault) ([]api.Fault, bool)) error {
	for range maxAttempts {
		seen := hw.files[device]
		var faults api.Faults
		if seen != nil {
			var err error
			if faults, err = api.ParseFaults(seen); err != nil {
				return fmt.Errorf("read faults of %s on node %q: %w", device, s.node.Name(), err)
			}
		}
		var changed bool
		if faults.Faults, changed = change(faults.Faults); !changed {
			return nil
		}
		content, err := faults.Encode()
		if err != nil {
			return fmt.Errorf("change faults of %s on node %q: %w", device, s.node.Name(), err)
		}
		err = s.replace(ctx, device, seen, content)
		if !errors.Is(err, errConflict) {
			return err
		}
		if hw, err = s.read(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("write faults of %s on node %q: %w, %d times in a row", device, s.node.Name(), errConflict, maxAttempts)
}
