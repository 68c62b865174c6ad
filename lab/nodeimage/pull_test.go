package nodeimage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestKindRef(t *testing.T) {
	for _, test := range []struct{ repository, version, want string }{
		{"", "v1.37.0", "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"},
		{"", "v1.37.2", "kindest/node:v1.37.2"},
		{"127.0.0.1:5000/node", "v1.37.0", "127.0.0.1:5000/node:v1.37.0"},
	} {
		if got := kindRef(test.repository, test.version); got != test.want {
			t.Errorf("kindRef(%q, %s) = %s, want %s", test.repository, test.version, got, test.want)
		}
	}
}

// The texts are what Docker 20.10 and 28, podman 4 and containerd say.
func TestClassifyPull(t *testing.T) {
	for text, want := range map[string]registryAnswer{
		// Nobody answers.
		`Error response from daemon: Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host`:                                       answerNone,
		`Error response from daemon: Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused`:                                                                  answerNone,
		`Error response from daemon: Get "https://registry-1.docker.io/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)`: answerNone,
		`Error response from daemon: Get "https://registry-1.docker.io/v2/": context deadline exceeded`:                                                                                answerNone,
		`Error response from daemon: Get "https://registry-1.docker.io/v2/": x509: certificate signed by unknown authority`:                                                            answerNone,
		`Error response from daemon: received unexpected HTTP status: 503 Service Unavailable`:                                                                                         answerNone,
		`Error: initializing source docker://kindest/node:v1.37.0: pinging container registry registry-1.docker.io: Get "https://registry-1.docker.io/v2/": dial tcp: i/o timeout`:     answerNone,
		`run docker pull: no answer within 20s`: answerNone,
		// It does not have it.
		`Error response from daemon: manifest for kindest/node:v1.37.2 not found: manifest unknown: manifest unknown`:                                                                 answerNotFound,
		`Error response from daemon: pull access denied for kindest/nod, repository does not exist or may require 'docker login': denied: requested access to the resource is denied`: answerNotFound,
		`Error: initializing source docker://kindest/node:v9: reading manifest v9 in docker.io/kindest/node: manifest unknown`:                                                        answerNotFound,
		`Error response from daemon: failed to resolve reference "docker.io/kindest/node:v9": docker.io/kindest/node:v9: not found`:                                                   answerNotFound,
		// It refuses.
		`Error response from daemon: Head "https://example.com/v2/kindest/node/manifests/v1.37.0": unauthorized: authentication required`:  answerRefused,
		`Error response from daemon: toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating`: answerRefused,
		`Error response from daemon: error parsing HTTP 403 response body: denied: access forbidden`:                                       answerRefused,
		// It is not about registries.
		`Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?`: answerOther,
		`failed to register layer: write /usr/bin/kubelet: no space left on device`:                         answerOther,
		`exec: "docker": executable file not found in $PATH`:                                                answerOther,
	} {
		if got := classifyPull(text); got != want {
			t.Errorf("classifyPull(%q) = %d, want %d", text, got, want)
		}
	}
}

// A scripted engine answers every command with the output of a shell script
// that gets the command's words as its arguments.
type scripted struct {
	script string
	calls  []string
}

func (s *scripted) Command(ctx context.Context, args ...string) *exec.Cmd {
	s.calls = append(s.calls, strings.Join(args, " "))
	return exec.CommandContext(ctx, "sh", append([]string{"-c", s.script, "engine"}, args...)...)
}

func TestLookUp(t *testing.T) {
	there := &scripted{script: `echo '[{"Id":"sha256:abc","Config":{"Labels":{"dra-lab.node.key":"k"}}}]'`}
	image, ok, err := lookUp(t.Context(), there, "x")
	if err != nil || !ok || image.ID != "sha256:abc" || image.Config.Labels[labelKey] != "k" {
		t.Errorf("image %+v, %t, %v", image, ok, err)
	}
	missing := &scripted{script: `echo []; echo 'Error: No such image: x' >&2; exit 1`}
	if _, ok, err := lookUp(t.Context(), missing, "x"); ok || err != nil {
		t.Errorf("missing image: %t, %v", ok, err)
	}
	broken := &scripted{script: `echo 'Cannot connect to the Docker daemon' >&2; exit 1`}
	if _, ok, err := lookUp(t.Context(), broken, "x"); ok || err == nil || !strings.Contains(err.Error(), "Cannot connect") {
		t.Errorf("engine without a daemon: %t, %v", ok, err)
	}
}

// An engine's second look at the same image is answered from the cache, also
// under another name; another image is looked into again.
func TestInspectRemembersByID(t *testing.T) {
	eng := &scripted{script: `case $1 in run) printf 'kubernetes=v1.37.2\nkubelet=Kubernetes v1.36.3\ncni=yes\n';; esac`}
	dir := t.TempDir()
	for i, look := range []struct {
		ref, id string
		runs    int
	}{{"a:1", "sha256:aa", 1}, {"a:1", "sha256:aa", 1}, {"b:2", "sha256:aa", 1}, {"a:1", "sha256:bb", 2}} {
		image, err := inspect(t.Context(), eng, look.ref, engineImage{ID: look.id}, dir)
		if err != nil {
			t.Fatal(err)
		}
		want := Image{Ref: look.ref, ID: look.id, Kubernetes: "v1.37.2", Kubelet: "v1.36.3", DefaultCNI: true}
		if image != want {
			t.Errorf("look %d: %+v", i, image)
		}
		if len(eng.calls) != look.runs {
			t.Errorf("look %d: the engine was asked %d times", i, len(eng.calls))
		}
	}
}

// What an image brings can be told, too, where it cannot be remembered: on a full
// disk, or from a cache that is somebody else's.
func TestInspectWithoutACache(t *testing.T) {
	eng := &scripted{script: `printf 'kubernetes=v1.37.2\nkubelet=Kubernetes v1.36.3\n'`}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	image, err := inspect(t.Context(), eng, "a:1", engineImage{ID: "sha256:aa"}, filepath.Join(file, "below"))
	if err != nil || image.Kubelet != "v1.36.3" {
		t.Errorf("image %+v, %v", image, err)
	}
}

func TestInspectRefusesOtherImages(t *testing.T) {
	for what, output := range map[string]string{
		"no version file":   `printf 'kubernetes=\nkubelet=Kubernetes v1.37.2\n'`,
		"no kubelet":        `printf 'kubernetes=v1.37.2\nkubelet=\n'`,
		"no shell":          `echo 'exec: "/bin/sh": no such file' >&2; exit 127`,
		"nothing but noise": `echo hello`,
	} {
		if image, err := inspect(t.Context(), &scripted{script: output}, "x", engineImage{ID: "sha256:x"}, t.TempDir()); err == nil {
			t.Errorf("%s: accepted as %+v", what, image)
		}
	}
}

func TestListedRef(t *testing.T) {
	for line, want := range map[string]string{
		"dra-lab/node v1.37.2 <none> 7dc246c71620":        "dra-lab/node:v1.37.2",
		"kindest/node <none> sha256:a1ed56 7dc246c71620":  "kindest/node@sha256:a1ed56",
		"kindest/node v1.37.0 sha256:a1ed56 7dc246c71620": "kindest/node:v1.37.0",
		"<none> <none> <none> 7dc246c71620":               "",
		"kindest/node <none> <none> 7dc246c71620":         "",
		"": "",
	} {
		if got := listedRef(line); got != want {
			t.Errorf("listedRef(%q) = %q, want %q", line, got, want)
		}
	}
}

// An update of the lab changed the recipe, and there is no network to build
// by it: the image of the older lab serves, and the user is told.
func TestEnsureFallsBackToAnOlderBuild(t *testing.T) {
	goAlone(t, "off")
	o := testOptions(t, "v1.37.2", "")
	eng := &scripted{script: `
		case "$*" in
		"image inspect dra-lab/node:v1.37.2") echo '[{"Id":"sha256:old","Config":{"Labels":{"dra-lab.node.key":"of an older recipe"}}}]';;
		"image inspect "*) echo "Error: No such image" >&2; exit 1;;
		pull*) echo "dial tcp: connect: connection refused" >&2; exit 1;;
		run*) printf 'kubernetes=v1.37.2\nkubelet=Kubernetes v1.37.2\n';;
		esac`}
	var said bytes.Buffer
	image, err := Ensure(t.Context(), eng, o, ui.New(io.Discard, &said, 0))
	if err != nil {
		t.Fatal(err)
	}
	if image.ID != "sha256:old" || !strings.Contains(said.String(), "older lab") {
		t.Errorf("image %+v, the user was told:\n%s", image, &said)
	}

	// Asked to build, the lab says that it cannot.
	if _, err := Build(t.Context(), eng, o, quiet()); !errors.Is(err, ErrNoNetwork) {
		t.Errorf("Build: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, test := range map[string]struct {
		in                  Options
		kubernetes, kubelet string
		usage               bool
	}{
		"zero":                      {in: Options{}},
		"v may be missing":          {in: Options{Kubernetes: "1.36.3"}, kubernetes: "v1.36.3"},
		"older kubelet":             {in: Options{Kubernetes: "v1.37.2", Kubelet: "v1.34.4"}, kubernetes: "v1.37.2", kubelet: "v1.34.4"},
		"kubelet of the default":    {in: Options{Kubelet: "v1.36.3"}, kubernetes: DefaultKubernetes, kubelet: "v1.36.3"},
		"same kubelet is no change": {in: Options{Kubernetes: "v1.37.2", Kubelet: "1.37.2"}, kubernetes: "v1.37.2"},
		"newer kubelet":             {in: Options{Kubernetes: "v1.36.3", Kubelet: "v1.37.2"}, usage: true},
		"nonsense":                  {in: Options{Kubernetes: "newest"}, usage: true},
	} {
		t.Run(name, func(t *testing.T) {
			test.in.CacheDir = t.TempDir()
			got, err := test.in.complete()
			if test.usage {
				if ui.Status(err) != ui.StatusUsage || ui.Hint(err) == "" {
					t.Errorf("error %v, hint %q", err, ui.Hint(err))
				}
				return
			}
			if err != nil || got.Kubernetes != test.kubernetes || got.Kubelet != test.kubelet {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// An image made by another recipe, or of other parts, has another key.
func TestRecipeKey(t *testing.T) {
	if recipeKey("v1.37.2") == recipeKey("v1.36.3") {
		t.Error("two versions, one key")
	}
	kubelet := kubernetesProgram("kubelet", "v1.36.3", "kubelet").step(goTools{})
	if mixedKey(Image{ID: "sha256:a"}, kubelet) == mixedKey(Image{ID: "sha256:b"}, kubelet) {
		t.Error("two base images, one key")
	}
}
