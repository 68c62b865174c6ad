package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	kind "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/constants"
	"sigs.k8s.io/kind/pkg/log"

	"github.com/dra-lab/dra-lab/lab/host"
)

const (
	// What kind labels node containers with.
	clusterLabel = "io.x-k8s.kind.cluster"
	roleLabel    = "io.x-k8s.kind.role"
	// The network that kind puts all clusters on, and what overrides it.
	kindNetwork    = "kind"
	kindNetworkEnv = "KIND_EXPERIMENTAL_DOCKER_NETWORK"
)

func networkName() string {
	if name := os.Getenv(kindNetworkEnv); name != "" {
		return name
	}
	return kindNetwork
}

// engine is the container engine of this process's environment.
type engine struct{ *host.Engine }

// environmentEngine returns the engine that host.Engine.Use chose, or docker.
func environmentEngine() engine {
	name := os.Getenv("KIND_EXPERIMENTAL_PROVIDER")
	if name == "" {
		name = "docker"
	}
	return engine{&host.Engine{Kind: name, Host: os.Getenv("DOCKER_HOST")}}
}

// kindProvider returns kind's library for this engine.
func (e engine) kindProvider(logger log.Logger) *kind.Provider {
	option := kind.ProviderWithDocker()
	switch e.Kind {
	case "podman":
		option = kind.ProviderWithPodman()
	case "nerdctl":
		option = kind.ProviderWithNerdctl("nerdctl")
	}
	return kind.NewProvider(option, kind.ProviderWithLogger(logger))
}

// output runs the engine's command line and returns its stdout. The error ends
// with the last line of stderr.
func (e engine) output(ctx context.Context, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := e.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", e.Kind, args[0], commandError(ctx, err, stderr.String()))
	}
	return stdout.Bytes(), nil
}

// commandError adds to the error of a command why it was stopped, or what it
// said last.
func commandError(ctx context.Context, err error, stderr string) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if line := lastLine(stderr); line != "" {
		return fmt.Errorf("%w: %s", err, line)
	}
	return err
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// A container is a node of a kind cluster, ours or not, as the engine has it.
type container struct {
	name, id, role string
	state          string            // running, exited, ...
	started        time.Time         // the last time
	detail         string            // for people: state, exit code, error
	mounts         map[string]string // path in the container to path on the host
}

func (c container) running() bool { return c.state == "running" }

// isNode reports whether it runs a kubelet, unlike a load balancer.
func (c container) isNode() bool { return c.role != constants.ExternalLoadBalancerNodeRoleValue }

// containers returns the containers of the kind cluster with that name, sorted
// as kind made them: by role and name, control planes first.
func (e engine) containers(ctx context.Context, name string) ([]container, error) {
	out, err := e.output(ctx, "ps", "--all", "--filter", "label="+clusterLabel+"="+name, "--format", "{{.Names}}")
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(out))
	if len(names) == 0 {
		return nil, nil
	}
	// A container that is being removed meanwhile makes inspect fail, after it
	// has printed the others: what it printed counts.
	var stdout, stderr bytes.Buffer
	cmd := e.Command(ctx, append([]string{"inspect", "--type=container"}, names...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	var exit *exec.ExitError
	gone := strings.Contains(strings.ToLower(stderr.String()), "no such")
	if runErr != nil && (!errors.As(runErr, &exit) || !gone || ctx.Err() != nil) {
		return nil, fmt.Errorf("%s inspect: %w", e.Kind, commandError(ctx, runErr, stderr.String()))
	}
	found, err := parseContainers(stdout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s inspect: %w", e.Kind, err)
	}
	return found, nil
}

// parseContainers reads what docker, podman and nerdctl inspect print.
func parseContainers(data []byte) ([]container, error) {
	var inspected []struct {
		ID    string `json:"Id"`
		Name  string
		State struct {
			Status, Error string
			ExitCode      int
			OOMKilled     bool
			StartedAt     time.Time
		}
		Config     struct{ Labels map[string]string }
		HostConfig struct{ Binds []string }
		Mounts     []struct{ Source, Destination string }
	}
	if err := json.Unmarshal(data, &inspected); err != nil {
		return nil, err
	}
	found := make([]container, 0, len(inspected))
	for _, i := range inspected {
		c := container{
			name: strings.TrimPrefix(i.Name, "/"), id: i.ID, role: i.Config.Labels[roleLabel],
			state: i.State.Status, started: i.State.StartedAt, detail: i.State.Status, mounts: make(map[string]string),
		}
		if i.State.Status != "running" {
			c.detail = fmt.Sprintf("%s, exit code %d", i.State.Status, i.State.ExitCode)
			if i.State.OOMKilled {
				c.detail += ", out of memory"
			}
			if i.State.Error != "" {
				c.detail += ": " + i.State.Error
			}
		}
		for _, m := range i.Mounts {
			c.mounts[m.Destination] = m.Source
		}
		// As they were asked for: Docker Desktop shows other sources above.
		for _, b := range i.HostConfig.Binds {
			if source, rest, ok := strings.Cut(b, ":"); ok {
				destination, _, _ := strings.Cut(rest, ":")
				c.mounts[destination] = source
			}
		}
		found = append(found, c)
	}
	slices.SortFunc(found, func(a, b container) int {
		if a.role != b.role {
			return strings.Compare(a.role, b.role) // control-plane, external-load-balancer, worker
		}
		if len(a.name) != len(b.name) {
			return len(a.name) - len(b.name) // worker2 before worker10
		}
		return strings.Compare(a.name, b.name)
	})
	return found, nil
}

// remove removes containers with their volumes. Containers that are gone are
// no error.
func (e engine) remove(ctx context.Context, containers []container) error {
	if len(containers) == 0 {
		return nil
	}
	args := []string{"rm", "--force", "--volumes"}
	for _, c := range containers {
		args = append(args, c.id) // a name may meanwhile be somebody else's
	}
	_, err := e.output(ctx, args...)
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "no such container") {
		return nil
	}
	return err
}

// start starts containers that are not running.
func (e engine) start(ctx context.Context, containers []container) error {
	args := []string{"start"}
	for _, c := range containers {
		if !c.running() {
			args = append(args, c.id)
		}
	}
	if len(args) == 1 {
		return nil
	}
	_, err := e.output(ctx, args...)
	return err
}

// network returns the ID of kind's network, or "" if there is none.
func (e engine) network(ctx context.Context) (string, error) {
	out, err := e.output(ctx, "network", "ls", "--filter", "name=^"+networkName()+"$", "--format", "{{.ID}}", "--no-trunc")
	if err != nil {
		return "", err
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return id, nil
}

// onNetwork reports whether any container, running or not, is on kind's network.
func (e engine) onNetwork(ctx context.Context) (bool, error) {
	out, err := e.output(ctx, "ps", "--all", "--filter", "network="+networkName(), "--format", "{{.ID}}")
	return len(bytes.TrimSpace(out)) > 0, err
}

// exec runs a command in a container. Stdin and stdout may be nil.
func (e engine) exec(ctx context.Context, name string, stdin io.Reader, stdout io.Writer, argv ...string) error {
	args := []string{"exec", "--privileged"}
	if stdin != nil {
		args = append(args, "--interactive")
	}
	var stderr bytes.Buffer
	cmd := e.Command(ctx, append(append(args, name), argv...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
	if err := cmd.Run(); err != nil {
		return commandError(ctx, err, stderr.String())
	}
	return nil
}

// samePath reports whether two paths are the same, or lead to the same file.
func samePath(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
