package live

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// verbosity asks the kubelet how much it logs.
func (p *player) verbosity(ctx context.Context) (int, error) {
	node := p.side.Node.Name()
	data, err := p.side.Client.CoreV1().RESTClient().Get().
		Resource("nodes").Name(node).SubResource("proxy").Suffix("configz").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read configuration of kubelet on %q: %w", node, err)
	}
	var config struct {
		KubeletConfig struct {
			Logging struct {
				Verbosity int `json:"verbosity"`
			} `json:"logging"`
		} `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return 0, fmt.Errorf("read configuration of kubelet on %q: %w", node, err)
	}
	return config.KubeletConfig.Logging.Verbosity, nil
}

// awaitLog waits for a line of the kubelet's log that was written after a moment
// and matches an extended regular expression. The time is the journal's.
func (p *player) awaitLog(ctx context.Context, since time.Time, limit time.Duration, pattern string) (time.Time, error) {
	// The command outlives a call that ends early, so it has an end of its own.
	const script = `timeout "$1" journalctl -u kubelet -f -n all --since="@$2" -o short-unix | grep -m 1 -E -e "$3"`
	end := strconv.Itoa(int(limit.Seconds()) + 5)
	out, err := p.side.Node.Exec(ctx, nil, "sh", "-c", script, "sh", end, strconv.FormatInt(since.Unix(), 10), pattern)
	if err != nil {
		return time.Time{}, fmt.Errorf("follow kubelet's log on %q: %w", p.side.Node.Name(), err)
	}
	return logTime(string(out))
}

// logTime is the time of a line in the journal's format short-unix.
func logTime(line string) (time.Time, error) {
	field, _, _ := strings.Cut(line, " ")
	seconds, err := strconv.ParseFloat(field, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of log line %q: %w", line, err)
	}
	return time.UnixMicro(int64(math.Round(seconds * 1e6))), nil
}
