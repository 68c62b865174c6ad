package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// EngineFacts is what an engine says about itself.
type EngineFacts struct {
	Kind          string `json:"kind"`              // docker, podman or nerdctl
	Host          string `json:"host,omitempty"`    // address of its socket
	From          string `json:"from,omitempty"`    // the environment variable that names it, if one does
	Private       bool   `json:"private,omitempty"` // the lab's own
	Version       string `json:"version,omitempty"`
	CgroupVersion int    `json:"cgroupVersion,omitempty"` // 0: it does not say
	Rootless      bool   `json:"rootless,omitempty"`
	UserNamespace bool   `json:"userNamespace,omitempty"`
	DataRoot      string `json:"dataRoot,omitempty"`

	// Unreachable says why the engine cannot be used at all, and Unprivileged
	// why it runs no privileged containers; "" if it does, or if nobody tried.
	Unreachable    string `json:"unreachable,omitempty"`
	Unprivileged   string `json:"unprivileged,omitempty"`
	Verified       bool   `json:"verified"`                 // a privileged container ran
	NoSysResource  bool   `json:"noSysResource,omitempty"`  // and lacked CAP_SYS_RESOURCE
	CommandMissing bool   `json:"commandMissing,omitempty"` // there is no such program here
}

// inspectTimeout bounds one question to an engine: one behind an address that
// swallows packets would not answer for minutes.
const inspectTimeout = 10 * time.Second

// inspect asks an engine about itself. It returns facts even when there is no
// such engine, with Unreachable saying why.
func inspect(ctx context.Context, e Engine) EngineFacts {
	ctx, cancel := context.WithTimeoutCause(ctx, inspectTimeout, fmt.Errorf("no answer after %s", inspectTimeout))
	defer cancel()
	facts := EngineFacts{Kind: e.Kind, Host: e.Host, Private: e.Private}
	if findProgram(e.Kind) == "" {
		facts.CommandMissing = true
		facts.Unreachable = fmt.Sprintf("program %q not found", e.Kind)
		return facts
	}
	err := facts.ask(ctx, e)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		facts.Unreachable = err.Error()
	}
	if strings.Contains(facts.Unreachable, denied+" while trying to connect") {
		facts.Unreachable = denied // docker goes on with the request that it made
	}
	return facts
}

// denied is how engines' commands say that a socket is for others.
const denied = "permission denied"

func (facts *EngineFacts) ask(ctx context.Context, e Engine) error {
	if e.Kind == "docker" {
		// Podman comes with an imitation of docker that kind refuses.
		version, err := output(e.Command(ctx, "--version"))
		if err != nil {
			return err
		}
		if !strings.HasPrefix(version, "Docker version") {
			return fmt.Errorf("the docker command here is %q, not Docker's", strings.TrimSpace(version))
		}
		if facts.Host == "" {
			facts.Host = dockerHost(ctx, e)
		}
	}
	if e.Kind == "podman" {
		text, err := output(e.Command(ctx, "info", "--format", "json"))
		if err != nil {
			return err
		}
		return facts.readPodman([]byte(text))
	}
	text, err := output(e.Command(ctx, "info", "--format", "{{json .}}"))
	// The command succeeds without an engine, or fails, or fails and prints a
	// skeleton of an answer, depending on its version.
	readErr := facts.readDocker([]byte(text))
	if err != nil && errors.Is(readErr, errNoAnswer) {
		return err
	}
	return readErr
}

// errNoAnswer says that what the command printed is not from an engine.
var errNoAnswer = errors.New("no answer from an engine")

// dockerHost returns the address that the docker command would use.
func dockerHost(ctx context.Context, e Engine) string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	host, err := output(e.Command(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"))
	if err != nil {
		return "unix:///var/run/docker.sock"
	}
	return strings.TrimSpace(host)
}

// readDocker reads what "docker info" and "nerdctl info" print.
func (facts *EngineFacts) readDocker(text []byte) error {
	var info struct {
		ServerVersion   string
		CgroupVersion   string
		DockerRootDir   string
		SecurityOptions []string
		ServerErrors    []string
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if len(info.ServerErrors) > 0 {
		return errors.New(strings.Join(info.ServerErrors, "; "))
	}
	if info.ServerVersion == "" {
		return errNoAnswer
	}
	facts.Version = info.ServerVersion
	facts.DataRoot = info.DockerRootDir
	switch info.CgroupVersion {
	case "1":
		facts.CgroupVersion = 1
	case "2":
		facts.CgroupVersion = 2
	}
	for _, option := range info.SecurityOptions {
		facts.Rootless = facts.Rootless || strings.Contains(option, "name=rootless")
		facts.UserNamespace = facts.UserNamespace || strings.Contains(option, "name=userns")
	}
	facts.UserNamespace = facts.UserNamespace || facts.Rootless
	return nil
}

// readPodman reads what "podman info" prints.
func (facts *EngineFacts) readPodman(text []byte) error {
	var info struct {
		Host struct {
			CgroupVersion string `json:"cgroupVersion"`
			RemoteSocket  struct {
				Path string `json:"path"`
			} `json:"remoteSocket"`
			Security struct {
				Rootless bool `json:"rootless"`
			} `json:"security"`
		} `json:"host"`
		Store struct {
			GraphRoot string `json:"graphRoot"`
		} `json:"store"`
		Version struct {
			Version string
		} `json:"version"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return fmt.Errorf("parse engine info: %w", err)
	}
	facts.Version = info.Version.Version
	facts.DataRoot = info.Store.GraphRoot
	facts.Rootless = info.Host.Security.Rootless
	facts.UserNamespace = facts.Rootless
	switch strings.TrimPrefix(info.Host.CgroupVersion, "v") {
	case "1":
		facts.CgroupVersion = 1
	case "2":
		facts.CgroupVersion = 2
	}
	return nil
}

// checkTimeout bounds how long an engine may take to load and run the probe: a
// second or two, and tens of them where much else goes on.
const checkTimeout = 2 * time.Minute

// check lets the engine run a privileged container and notes the outcome.
func (facts *EngineFacts) check(ctx context.Context, e Engine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("no privileged container ran within %s", checkTimeout))
	defer cancel()
	noSysResource, err := e.verify(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		facts.Unprivileged = err.Error()
		return err
	}
	facts.Verified, facts.NoSysResource = true, noSysResource
	return nil
}

// engine returns the engine that the facts are about.
func (facts *EngineFacts) engine() *Engine {
	e := &Engine{Kind: facts.Kind, Host: facts.Host, Private: facts.Private, DataRoot: facts.DataRoot}
	e.Restrictions = Restrictions{
		CapSysResource: facts.NoSysResource,
		CgroupV1:       facts.CgroupVersion == 1,
		UserNamespace:  facts.UserNamespace,
	}
	if facts.Private {
		// The engine is this host's, so this process sees what it sees.
		e.Restrictions.Missing, _ = missingCapabilities()
	} else if facts.NoSysResource {
		e.Restrictions.Missing = []string{"CAP_SYS_RESOURCE"}
	}
	return e
}
