package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dra-lab/dra-lab/lab/host"
)

// networkRecord says that kind's network is there because of us: kind makes it
// for its first cluster and never removes it. It is one for all clusters, so its
// record is, too.
type networkRecord struct {
	// ID is the network's; "" if we were stopped before we could look: there was
	// none when the record was written.
	ID string `json:"id"`
}

func networkFile() (string, error) {
	base, err := host.StateDir()
	return filepath.Join(base, "network.json"), err
}

// newNetwork records, if there is no network yet, that a new one is ours.
func newNetwork(ctx context.Context, e engine) (*networkRecord, error) {
	id, err := e.network(ctx)
	if err != nil || id != "" {
		return nil, err
	}
	r := &networkRecord{}
	return r, r.write()
}

// made completes the record. A nil one, as newNetwork returns it where there was
// a network before, stays nil.
func (r *networkRecord) made(ctx context.Context, e engine) (err error) {
	if r == nil || ctx.Err() != nil {
		return nil
	}
	if r.ID, err = e.network(ctx); err != nil {
		return err
	}
	return r.write()
}

func (r *networkRecord) write() error {
	file, err := networkFile()
	if err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := host.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("record engine network %q: %w", networkName(), err)
	}
	return nil
}

// removeNetwork removes kind's network if it is ours and no container is on it,
// ours or not.
func removeNetwork(ctx context.Context, e engine) error {
	file, err := networkFile()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var r networkRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	id, err := e.network(ctx)
	if err != nil {
		return err
	}
	if id != "" && (r.ID == "" || r.ID == id) {
		if used, err := e.onNetwork(ctx); err != nil || used {
			return err
		}
		if _, err := e.output(ctx, "network", "rm", id); err != nil {
			return err
		}
	}
	return os.Remove(file)
}
