package nodeimage

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/kind/pkg/apis/config/defaults"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// kindRepository is where kind publishes its node images.
const kindRepository = "kindest/node"

// kindReleases are the images that were made for kind's release v0.33.0, as
// its release notes list them. Images of the same name that come later may not
// work with this kind, so the digest is part of the reference.
func kindReleases() map[string]string {
	return map[string]string{
		"v1.37.0":  "sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5",
		"v1.36.4":  "sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed",
		"v1.35.8":  "sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0",
		"v1.34.11": "sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d",
	}
}

// kindDefault is the version of the image that kind uses if nobody asks for
// any: v1.37.0.
func kindDefault() string { return imageTag(defaults.Image) }

// kindRef names kind's image for a version of Kubernetes, with its digest
// where that is known. An empty repository is kind's own.
func kindRef(repository, version string) string {
	ref := kindRepository + ":" + version
	if repository != "" {
		return repository + ":" + version
	}
	if digest := kindReleases()[version]; digest != "" {
		ref += "@" + digest
	}
	return ref
}

// registryAnswer is what came of asking a registry for an image.
type registryAnswer int

const (
	answerOther    registryAnswer = iota // an error that is not the registry's: the engine, the disk
	answerNone                           // nobody answered
	answerNotFound                       // the registry has no such image
	answerRefused                        // it wants a login, or has had enough of us
)

// classifyPull reads an engine's words about a pull that went wrong. The order
// counts: "denied: requested access to the resource is denied" is what some
// registries say for what they do not have, so it is no proof of a bad login.
func classifyPull(output string) registryAnswer {
	text := strings.ToLower(output)
	switch {
	case containsAny(text, "docker daemon", "executable file not found", "no space left on device"):
		return answerOther
	case containsAny(text, "no such host", "connection refused", "i/o timeout", "network is unreachable",
		"no route to host", "tls handshake timeout", "client.timeout exceeded", "deadline exceeded",
		"server misbehaving", "temporary failure in name resolution", "proxyconnect", "connection reset",
		"request canceled while waiting", "no answer within", "certificate", "server gave http response",
		"502 bad gateway", "503 service unavailable", "504 gateway", "unexpected eof"):
		return answerNone
	case containsAny(text, "manifest unknown", "not found", "does not exist", "name unknown", "no such manifest"):
		return answerNotFound
	case containsAny(text, "unauthorized", "denied", "forbidden", "authentication required",
		"toomanyrequests", "too many requests", "rate limit"):
		return answerRefused
	}
	return answerOther
}

// answerWithin bounds how long a registry may take until it says anything. A
// pull that has begun takes as long as it takes.
const answerWithin = 20 * time.Second

// pull fetches an image. Its error is a *pullError where a registry was asked.
func pull(parent context.Context, eng Engine, ref string, patience time.Duration, u *ui.UI) (err error) {
	progress := u.Step("pulling node image %s", ref)
	defer func() { progress.Done(err) }()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	silence := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("no answer within %s", patience))
	})
	defer silence.Stop()
	cmd := eng.Command(ctx, "pull", ref)
	// The first line on stdout ("v1.37.0: Pulling from kindest/node") means
	// that a registry has answered. Podman reports on stderr.
	heard := func(line string) {
		if !containsAny(strings.ToLower(line), "error", "trying to pull", "warn") {
			silence.Stop()
		}
		progress.Update(line)
	}
	out := &lineWriter{onLine: heard}
	cmd.Stdout = out
	if _, err := run(ctx, cmd, heard); err != nil {
		if parent.Err() != nil {
			return fmt.Errorf("pull image %q: %w", ref, err)
		}
		return &pullError{ref: ref, answer: classifyPull(err.Error() + "\n" + ui.Detail(err)), err: err}
	}
	return nil
}

// A pullError is a pull that a registry did not grant.
type pullError struct {
	ref    string
	answer registryAnswer
	err    error
}

func (e *pullError) Error() string { return fmt.Sprintf("pull image %q: %v", e.ref, e.err) }
func (e *pullError) Unwrap() error { return e.err }
