package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	kindexec "sigs.k8s.io/kind/pkg/exec"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// How long what is left of a failed cluster is asked what is wrong with it.
const diagnosisTimeout = 20 * time.Second

// failedCommand returns the command of kind's that an error is about, or nil.
func failedCommand(err error) *kindexec.RunError {
	var failed *kindexec.RunError
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}

// significantLine returns the line of a command's output that most likely says
// what went wrong: the last that has an error, else the last one.
func significantLine(output string) string {
	mark := regexp.MustCompile(`(?i)^(error|fatal|panic)|\b(error|failed|fatal|denied|cannot|unable)\b`)
	noise := regexp.MustCompile(` systemd\[\d+\]: |^\s*(/|goroutine |\t|[\w./]+\.\w+\(|To see the stack trace|stdlib|runtime\.|main\.main|cmd/)`)
	lines := strings.Split(strings.TrimSpace(output), "\n")
	last := ""
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		if line == "" || noise.MatchString(lines[i]) {
			continue
		}
		if mark.MatchString(line) {
			return line
		}
		if last == "" {
			last = line
		}
	}
	return last
}

// explain adds to the error of a failed creation what the nodes say: the one
// that is worst off in the message, all of them in the detail and in a file. It
// must run before the nodes are removed.
func explain(ctx context.Context, e engine, s survey, cause error) error {
	// The reason to stop may be that ctx has ended; what is left is looked at all
	// the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnosisTimeout)
	defer cancel()
	reports := diagnose(ctx, e, s)
	var all bytes.Buffer
	if failed := failedCommand(cause); failed != nil {
		fmt.Fprintf(&all, "== %s\n%s\n", failed.PrettyCommand(), bytes.TrimSpace(failed.Output))
	}
	worst := nodeReport{}
	for _, r := range reports {
		fmt.Fprintf(&all, "%s\n", r)
		if worst.node == "" || r.trouble > worst.trouble {
			worst = r
		}
	}
	err := kindError(ctx, cause)
	if worst.node != "" {
		err = fmt.Errorf("%w (node %s: %s)", err, worst.node, worst.summary())
		err = ui.WithDetail(err, "node "+worst.node, worst.journal())
	}
	hints := knownCures(err.Error() + all.String())
	// Where no node was begun, there is nothing to keep.
	if all.Len() > 0 && host.WriteFile(s.dir.failure(), all.Bytes(), 0o600) == nil {
		hints = append(hints, "all nodes' journals are in "+s.dir.failure())
	}
	if len(hints) == 0 {
		return err
	}
	return ui.WithHint(err, "%s", strings.Join(hints, "\n"))
}

// knownCures returns what to do about causes that are known to stop nodes.
func knownCures(text string) []string {
	var cures []string
	for _, known := range []struct{ sign, cure string }{
		// Each node's systemd, containerd and kubelet need a few.
		{"Too many open files", "the host is out of inotify instances: sysctl -w fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288"},
		{"no space left on device", "the disk is full: free some, see \"lab doctor\""},
		{"port is already allocated", "a host port of the config is in use: choose another hostPort, or free it"},
		{"address already in use", "a host port of the config is in use: choose another hostPort, or free it"},
	} {
		if strings.Contains(text, known.sign) && !slices.Contains(cures, known.cure) {
			cures = append(cures, known.cure)
		}
	}
	return cures
}

// plainLines takes what colours a console out of a log.
func plainLines(text string) string {
	return strings.ReplaceAll(regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`).ReplaceAllString(text, ""), "\r", "")
}

// A nodeReport is the last state of a node and the end of its journals.
type nodeReport struct {
	node       string
	state      string // of the container
	kubelet    string // state of the unit
	containerd string
	kubeletLog string
	engineLog  string // containerd's, or the container's if it does not run
	trouble    int    // how badly off it is, for comparison
}

func (r nodeReport) summary() string {
	if r.kubelet == "" && r.containerd == "" {
		if line := significantLine(r.engineLog); line != "" {
			return r.state + ": " + journalMessage(line)
		}
		return r.state
	}
	text := fmt.Sprintf("container %s, containerd %s, kubelet %s", r.state, r.containerd, r.kubelet)
	if line := significantLine(r.kubeletLog); line != "" && r.kubelet != "inactive" {
		text += ": " + journalMessage(line)
	} else if line := significantLine(r.engineLog); line != "" {
		text += ": " + journalMessage(line)
	}
	return text
}

func (r nodeReport) journal() string {
	return strings.TrimSpace(r.engineLog + "\n" + r.kubeletLog)
}

func (r nodeReport) String() string {
	return fmt.Sprintf("== node %s: container %s, containerd %s, kubelet %s\n-- containerd\n%s\n-- kubelet\n%s",
		r.node, r.state, r.containerd, r.kubelet, r.engineLog, r.kubeletLog)
}

// journalMessage takes the date and host out of a journal line.
func journalMessage(line string) string {
	message := regexp.MustCompile(`^\w{3} +\d+ [\d:]+ \S+ `).ReplaceAllString(line, "")
	const most = 300
	if len(message) > most {
		message = message[:most] + "..."
	}
	return message
}

// diagnose asks all nodes at the same time.
func diagnose(ctx context.Context, e engine, s survey) []nodeReport {
	nodes := s.nodes()
	reports := make([]nodeReport, len(nodes))
	var group sync.WaitGroup
	for i, c := range nodes {
		group.Go(func() { reports[i] = diagnoseNode(ctx, e, c) })
	}
	group.Wait()
	return reports
}

func diagnoseNode(ctx context.Context, e engine, c container) nodeReport {
	r := nodeReport{node: c.name, state: c.detail}
	if !c.running() {
		r.trouble = 4
		var out bytes.Buffer
		cmd := e.Command(ctx, "logs", "--tail", "40", c.id)
		cmd.Stdout, cmd.Stderr = &out, &out // the entrypoint speaks on both
		err := cmd.Run()
		r.engineLog = note(plainLines(out.String()), err)
		return r
	}
	// One call for all: each costs a tenth of a second on a loaded host. The
	// units' states come first, then both journals, set apart by a line.
	const script = `systemctl is-active containerd; systemctl is-active kubelet
echo ----; journalctl --no-pager -n 40 -u containerd
echo ----; journalctl --no-pager -n 60 -u kubelet`
	var out bytes.Buffer
	if err := e.exec(ctx, c.name, nil, &out, "/bin/sh", "-c", script); err != nil && out.Len() == 0 {
		r.trouble, r.engineLog = 3, note("", err)
		return r
	}
	parts := append(strings.SplitN(out.String(), "----\n", 3), "", "", "")
	units := append(strings.Fields(parts[0]), "unknown", "unknown")
	r.containerd, r.kubelet = units[0], units[1]
	r.engineLog, r.kubeletLog = strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])
	if r.containerd != "active" {
		r.trouble += 2
	}
	if r.kubelet != "active" {
		r.trouble++
	}
	return r
}

func note(text string, err error) string {
	if err != nil {
		return strings.TrimSpace(text + "\n" + err.Error())
	}
	return strings.TrimSpace(text)
}
