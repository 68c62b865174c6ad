package cluster

import (
	"fmt"
	"strings"
	"sync"

	"sigs.k8s.io/kind/pkg/log"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// logger makes steps of the UI from what kind's library logs. Kind says " • X  ..."
// when a step starts and " ✓ X" or " ✗ X" when it ends.
type logger struct {
	ui *ui.UI
	// kubeadmStarts, if not nil, is called when kind starts kubeadm.
	kubeadmStarts func()

	mu    sync.Mutex
	steps map[string]*ui.Step
}

// stepKubeadm is kind's step that runs kubeadm on the control plane.
const stepKubeadm = "starting control-plane"

func newLogger(u *ui.UI) *logger { return &logger{ui: u, steps: make(map[string]*ui.Step)} }

var _ log.Logger = (*logger)(nil)

// Warn passes a warning on, except for those that the plan has dealt with.
func (l *logger) Warn(message string) {
	for _, known := range []string{"Could not read storage manifest", "cgroup v1 is deprecated"} {
		if strings.Contains(message, known) {
			l.ui.Debug("kind: %s", plain(message))
			return
		}
	}
	l.ui.Warn("kind: %s", plain(message))
}

func (l *logger) Warnf(format string, args ...any) { l.Warn(fmt.Sprintf(format, args...)) }

// Error is what kind says beside the error that it returns.
func (l *logger) Error(message string)              { l.ui.Warn("kind: %s", plain(message)) }
func (l *logger) Errorf(format string, args ...any) { l.Error(fmt.Sprintf(format, args...)) }

// V returns a logger for a level: 0 is progress, the rest is for -v.
func (l *logger) V(level log.Level) log.InfoLogger {
	if level == 0 {
		return progressLogger{l}
	}
	return verboseLogger{ui: l.ui, level: int(level)}
}

// close ends steps that kind did not end.
func (l *logger) close(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, step := range l.steps {
		step.Done(err)
		delete(l.steps, name)
	}
}

type progressLogger struct{ *logger }

func (p progressLogger) Enabled() bool                    { return true }
func (p progressLogger) Infof(format string, args ...any) { p.Info(fmt.Sprintf(format, args...)) }

func (p progressLogger) Info(message string) {
	text := strings.TrimSpace(message)
	mark, rest, _ := strings.Cut(text, " ")
	name := stepName(rest)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch mark {
	case "•":
		if p.steps[name] == nil {
			p.steps[name] = p.ui.Step("%s", name)
		}
		if name == stepKubeadm && p.kubeadmStarts != nil {
			p.kubeadmStarts()
		}
	case "✓", "✗":
		var err error
		if mark == "✗" {
			err = errStepFailed{}
		}
		if step := p.steps[name]; step != nil {
			step.Done(err)
			delete(p.steps, name)
		}
	default:
		p.ui.Debug("kind: %s", plain(text))
	}
}

// errStepFailed marks a step as failed; why is in the error that kind returns.
type errStepFailed struct{}

func (errStepFailed) Error() string { return "failed" }

// stepName makes "starting control-plane" of "Starting control-plane 🕹️  ...".
func stepName(text string) string {
	name := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(plain(text)), "..."))
	if name == "" {
		return "working"
	}
	return strings.ToLower(name[:1]) + name[1:]
}

// plain takes pictures and line ends out of a message.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		if r > 0x7e || r < ' ' {
			return ' '
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

type verboseLogger struct {
	ui    *ui.UI
	level int
}

func (v verboseLogger) Enabled() bool { return v.ui.Verbosity() >= v.level }

func (v verboseLogger) Info(message string) {
	if v.Enabled() {
		v.ui.Debug("kind: %s", strings.TrimSpace(message))
	}
}

func (v verboseLogger) Infof(format string, args ...any) { v.Info(fmt.Sprintf(format, args...)) }
