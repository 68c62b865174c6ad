package reach

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// Copies of the test binary are the agents.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == AgentVerb {
		os.Exit(AgentMain()) //nolint:forbidigo // a copy of this program
	}
	goleak.VerifyTestMain(m)
}

func agentProcess(ctx context.Context) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, self, AgentVerb), nil
}

func web(t *testing.T) (*httptest.Server, probe.Target) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
		fmt.Fprint(w, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	return server, probe.Target{
		Namespace: "ns", Pod: "pod", PodIP: "127.0.0.1", Timeout: 10 * time.Second, UserAgent: "test",
		Container: corev1.Container{Name: "app", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}},
		Handler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("web")}},
	}
}

func TestAgentRunsHandlersInItsProcess(t *testing.T) {
	_, target := web(t)
	agent := NewAgent(agentProcess)
	var asking sync.WaitGroup
	for i := range 200 {
		asking.Go(func() {
			mine := target
			mine.Handler = *target.Handler.DeepCopy()
			mine.Handler.HTTPGet.Path = fmt.Sprintf("/%d", i)
			if a := agent.Probe(t.Context(), mine); a.Err != nil || a.Result != probe.Success || a.Output != mine.Handler.HTTPGet.Path || a.Took <= 0 {
				t.Errorf("answer %+v, want success with %s", a, mine.Handler.HTTPGet.Path)
			}
		})
	}
	asking.Wait()
	unknown := target
	unknown.Handler = corev1.ProbeHandler{}
	if a := agent.Probe(t.Context(), unknown); a.Err == nil || !strings.Contains(a.Err.Error(), "ns/pod") {
		t.Errorf("unknown handler: %+v, want an error that names the Pod", a)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
	if a := agent.Probe(t.Context(), target); a.Err == nil {
		t.Errorf("after Close: %+v, want an error", a)
	}
}

func TestAgentIsStartedAgain(t *testing.T) {
	_, target := web(t)
	var last *exec.Cmd
	agent := NewAgent(func(ctx context.Context) (cmd *exec.Cmd, err error) {
		last, err = agentProcess(ctx)
		return last, err
	})
	defer agent.Close()
	if a := agent.Probe(t.Context(), target); a.Err != nil {
		t.Fatal(a.Err)
	}
	slow := target
	slow.Handler = *target.Handler.DeepCopy()
	slow.Handler.HTTPGet.Path = "/slow"
	interrupted := make(chan probe.Answer)
	go func() { interrupted <- agent.Probe(t.Context(), slow) }()
	if err := last.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if a := <-interrupted; a.Err == nil || a.Result != probe.Unknown {
		t.Errorf("a probe whose agent was killed: %+v, want an error", a)
	}
	if a := probe.Try(t.Context(), agent, target); a.Err != nil || a.Result != probe.Success {
		t.Errorf("after that: %+v, want success from a new agent", a)
	}
}

func TestAgentsThatAreNone(t *testing.T) {
	_, target := web(t)
	for name, c := range map[string]struct {
		argv []string
		want string
	}{
		"says something else": {[]string{"sh", "-c", "echo hello; exec sleep 60"}, `read answer "hello"`},
		"says why":            {[]string{"sh", "-c", "echo no such container >&2; exit 1"}, "no such container"},
		"is not there":        {[]string{"/nonexistent/agent"}, "start the agent in the node"},
	} {
		agent := NewAgent(func(ctx context.Context) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, c.argv[0], c.argv[1:]...), nil
		})
		if a := agent.Probe(t.Context(), target); a.Err == nil || !strings.Contains(a.Err.Error(), c.want) {
			t.Errorf("an agent that %s: %v, want an error with %q", name, a.Err, c.want)
		}
		agent.Close()
	}
}

func TestAgentIsLeftWhenTheContextEnds(t *testing.T) {
	_, target := web(t)
	target.Handler.HTTPGet.Path = "/slow"
	agent := NewAgent(agentProcess)
	defer agent.Close()
	stopped := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(stopped) })
	if a := agent.Probe(ctx, target); !errors.Is(a.Err, stopped) {
		t.Errorf("answer %+v, want the cause", a)
	}
}
