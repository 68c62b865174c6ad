package nodeimage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// liveEngine returns the engine of this host.
func liveEngine(t *testing.T) Engine {
	t.Helper()
	eng, err := host.FindEngine(t.Context())
	if err != nil {
		t.Skipf("SKIPPED: needs a container engine: %v", err)
	}
	return eng
}

// smallNode makes an image of a few MB that answers like a node image when
// somebody looks inside: a shell and cat of this host, and a script for a
// kubelet. Everything else about the pull path does not depend on what is in
// an image.
func smallNode(t *testing.T, version, kubelet string, defaultCNI bool) v1.Image {
	t.Helper()
	root := t.TempDir()
	p := picker{root: "/", out: root, picked: map[string]bool{}}
	for _, tool := range []string{"usr/bin/dash", "usr/bin/cat"} {
		if err := p.pick(tool); err != nil {
			t.Skipf("SKIPPED: needs %s on a merged /usr: %v", tool, err)
		}
	}
	files := map[string]string{
		"usr/bin/kubelet": "#!/bin/sh\necho Kubernetes " + kubelet + "\n",
		"kind/version":    version,
	}
	if defaultCNI {
		files["kind/manifests/default-cni.yaml"] = "kind: DaemonSet\n"
	}
	for path, text := range files {
		if err := writeFile(filepath.Join(root, path), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}
	if err := link(root, links); err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, &layer{tree: tree{{from: root}}})
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, withConfig(image, v1.Config{Env: []string{searchPath}, Cmd: []string{"/bin/sh"}}))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// loopbackRegistry serves the images, by their references below its address.
func loopbackRegistry(t *testing.T, images map[string]v1.Image) (address string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	address = strings.TrimPrefix(server.URL, "http://")
	for path, image := range images {
		ref, err := name.ParseReference(address + "/" + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, image, remote.WithContext(t.Context())); err != nil {
			t.Fatalf("push %s: %v", ref, err)
		}
	}
	return address
}

// forget removes a reference from the engine when the test is over.
func forget(t *testing.T, eng Engine, ref string) {
	t.Helper()
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		_, there, err := lookUp(ctx, eng, ref)
		if err == nil && there {
			_, err = run(ctx, eng.Command(ctx, "image", "rm", "--force", ref), nil)
		}
		if err != nil {
			t.Errorf("remove image %s: %v", ref, err)
		}
	})
}

// testOptions keep the test's caches and locks to itself.
func testOptions(t *testing.T, version, repository string) Options {
	t.Helper()
	t.Setenv("DRA_LAB_STATE", t.TempDir())
	return Options{Kubernetes: version, Repository: repository, CacheDir: t.TempDir()}
}

// Most users get their node image from a registry. Given one that serves two
// images, one with a default CNI manifest and one without, Ensure pulls the one
// for the version and says which it is.
func TestEnsurePulls(t *testing.T) {
	eng := liveEngine(t)
	address := loopbackRegistry(t, map[string]v1.Image{
		"kindest/node:v1.37.0": smallNode(t, "v1.37.0", "v1.37.0", true),
		"kindest/node:v1.36.4": smallNode(t, "v1.36.4", "v1.36.4", false),
	})
	for version, defaultCNI := range map[string]bool{"v1.37.0": true, "v1.36.4": false} {
		t.Run(version, func(t *testing.T) {
			ref := address + "/kindest/node:" + version
			forget(t, eng, ref)
			o := testOptions(t, version, address+"/kindest/node")
			image, err := Ensure(t.Context(), eng, o, quiet())
			if err != nil {
				t.Fatalf("%v\n%s", err, ui.Detail(err))
			}
			want := Image{Ref: ref, ID: image.ID, Kubernetes: version, Kubelet: version, DefaultCNI: defaultCNI}
			if image != want || image.ID == "" {
				t.Errorf("got  %+v\nwant %+v", image, want)
			}
		})
	}
}

// A second Ensure finds the image in the engine and asks no registry.
func TestEnsureKeepsWhatWasPulled(t *testing.T) {
	eng := liveEngine(t)
	var asked atomic.Int32
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/kindest/node"
	ref, err := name.ParseReference(repository + ":v1.37.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, smallNode(t, "v1.37.0", "v1.37.0", true)); err != nil {
		t.Fatal(err)
	}
	forget(t, eng, ref.String())
	o := testOptions(t, "v1.37.0", repository)
	first, err := Ensure(t.Context(), eng, o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	asked.Store(0)
	second, err := Ensure(t.Context(), eng, o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if first != second || asked.Load() != 0 {
		t.Errorf("first %+v, second %+v, %d questions to the registry", first, second, asked.Load())
	}
}

// kind's pinned images are references with tag and digest. The digest decides:
// here the tag has moved on to another image.
func TestPullByDigest(t *testing.T) {
	eng := liveEngine(t)
	pinned := smallNode(t, "v1.37.0", "v1.37.0", true)
	digest, err := pinned.Digest()
	if err != nil {
		t.Fatal(err)
	}
	address := loopbackRegistry(t, map[string]v1.Image{
		"kindest/node@" + digest.String(): pinned,
		"kindest/node:v1.37.0":            smallNode(t, "v1.37.0", "v1.37.1", false),
	})
	ref := address + "/kindest/node:v1.37.0@" + digest.String()
	forget(t, eng, ref)
	if err := pull(t.Context(), eng, ref, answerWithin, quiet()); err != nil {
		t.Fatal(err)
	}
	image, err := maker{Options: testOptions(t, "v1.37.0", ""), eng: eng}.made(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if image.Kubelet != "v1.37.0" || !image.DefaultCNI || image.Built {
		t.Errorf("image %+v", image)
	}
}

// The whole of it: the image that was built here, published as kind publishes
// its own, and the same image with a default CNI manifest added.
func TestEnsurePullsARealNodeImage(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: moves a node image to a registry and back; run without -short")
	}
	eng := liveEngine(t)
	built := builtRef(DefaultKubernetes, "")
	found, ok, err := lookUp(t.Context(), eng, built)
	if err != nil || !ok {
		t.Skipf("SKIPPED: needs the image %s (%v): lab node-image build", built, err)
	}
	server := httptest.NewServer(registry.New(
		registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir()))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/kindest/node"

	engine := func(args ...string) string {
		t.Helper()
		out, err := run(t.Context(), eng.Command(t.Context(), args...), nil)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(out)
	}
	manifests := t.TempDir()
	if err := writeFile(filepath.Join(manifests, "manifests", "default-cni.yaml"), []byte("kind: DaemonSet\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	container := engine("create", temporary, found.ID)
	engine("cp", filepath.Join(manifests, "manifests"), container+":/kind/manifests")
	plain, withCNI := repository+":"+DefaultKubernetes, repository+":with-cni"
	forget(t, eng, plain)
	forget(t, eng, withCNI)
	engine("commit", "--change", "LABEL dra-lab.temporary=", container, withCNI)
	engine("rm", container)
	engine("tag", found.ID, plain)
	for _, ref := range []string{plain, withCNI} {
		engine("push", ref)
		engine("image", "rm", ref)
	}
	digestOf := func(ref string) string {
		t.Helper()
		parsed, err := name.ParseReference(ref)
		if err != nil {
			t.Fatal(err)
		}
		head, err := remote.Head(parsed)
		if err != nil {
			t.Fatal(err)
		}
		return head.Digest.String()
	}

	for ref, defaultCNI := range map[string]bool{
		plain:                             false,
		plain + "@" + digestOf(plain):     false,
		withCNI + "@" + digestOf(withCNI): true,
	} {
		forget(t, eng, ref)
		o := testOptions(t, DefaultKubernetes, "")
		if err := pull(t.Context(), eng, ref, answerWithin, quiet()); err != nil {
			t.Fatalf("%v\n%s", err, ui.Detail(err))
		}
		image, err := maker{Options: o, eng: eng}.made(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if image.Kubernetes != DefaultKubernetes || image.Kubelet != DefaultKubernetes || image.DefaultCNI != defaultCNI {
			t.Errorf("%s: %+v", ref, image)
		}
	}
}

// Where no image can be pulled, Ensure turns to building; here, where nothing
// can be built either, the error tells which way it went.
func TestEnsureBuildsWhereNothingCanBePulled(t *testing.T) {
	eng := liveEngine(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	empty := loopbackRegistry(t, nil)
	for name, test := range map[string]struct{ repository, said string }{
		"nobody there":                {"127.0.0.1:1/kindest/node", "no registry answers"},
		"somebody who does not speak": {silent.Addr().String() + "/kindest/node", "no registry answers"},
		"registry without the image":  {empty + "/kindest/node", "there is no image"},
	} {
		t.Run(name, func(t *testing.T) {
			moduleProxy(t, "v1.37.2")
			o := testOptions(t, "v1.37.9", test.repository)
			o.RegistryPatience = time.Second
			var said bytes.Buffer
			_, err := Ensure(t.Context(), eng, o, ui.New(io.Discard, &said, 0))
			if !errors.Is(err, ErrNoVersion) || !strings.Contains(ui.Hint(err), "v1.37.2") {
				t.Errorf("error %v, hint %q", err, ui.Hint(err))
			}
			if !strings.Contains(said.String(), test.said) {
				t.Errorf("the user was told %q, want %q", said.String(), test.said)
			}
		})
	}
}

func TestEnsureWithoutAnyNetwork(t *testing.T) {
	eng := liveEngine(t)
	goAlone(t, "off")
	_, err := Ensure(t.Context(), eng, testOptions(t, "v1.37.9", "127.0.0.1:1/kindest/node"), quiet())
	if !errors.Is(err, ErrNoNetwork) || ui.Hint(err) == "" {
		t.Errorf("error %v, hint %q", err, ui.Hint(err))
	}
}

// A registry that is there and refuses is the user's to settle: building for
// twenty minutes because of an expired login would be a surprise.
func TestEnsureStopsWhereARegistryRefuses(t *testing.T) {
	eng := liveEngine(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
	}))
	defer server.Close()
	o := testOptions(t, "v1.37.0", strings.TrimPrefix(server.URL, "http://")+"/kindest/node")
	_, err := Ensure(t.Context(), eng, o, quiet())
	var refusal *pullError
	if !errors.As(err, &refusal) || refusal.answer != answerRefused {
		t.Fatalf("error is %v", err)
	}
	if !strings.Contains(ui.Hint(err), "docker login") {
		t.Errorf("hint is %q", ui.Hint(err))
	}
}

// An image for a cluster of mixed versions is the image of the control plane's
// version, here a pulled one, with another kubelet and all else as it was.
func TestReplaceKubelet(t *testing.T) {
	eng := liveEngine(t)
	address := loopbackRegistry(t, map[string]v1.Image{"kindest/node:v1.37.0": smallNode(t, "v1.37.0", "v1.37.0", true)})
	base, mixed := address+"/kindest/node:v1.37.0", address+"/node:mixed"
	forget(t, eng, base)
	forget(t, eng, mixed)
	if err := pull(t.Context(), eng, base, answerWithin, quiet()); err != nil {
		t.Fatal(err)
	}
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	if err := writeFile(kubelet, []byte("#!/bin/sh\necho Kubernetes v1.36.4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := replaceKubelet(t.Context(), eng, base, kubelet, mixed, labels("some key", "v1.37.0", "v1.36.4"))
	if err != nil {
		t.Fatalf("%v\n%s", err, ui.Detail(err))
	}
	m := maker{Options: testOptions(t, "", ""), eng: eng}
	image, ok, err := m.current(t.Context(), mixed, "some key")
	if err != nil || !ok {
		t.Fatalf("found: %t, %v", ok, err)
	}
	want := Image{Ref: mixed, ID: image.ID, Kubernetes: "v1.37.0", Kubelet: "v1.36.4", DefaultCNI: true, Built: true}
	if image != want {
		t.Errorf("got  %+v\nwant %+v", image, want)
	}
	// Nodes made from the image must not count as temporary containers.
	found, _, err := lookUp(t.Context(), eng, mixed)
	if err != nil || found.Config.Labels["dra-lab.temporary"] != "" {
		t.Errorf("labels %v, %v", found.Config.Labels, err)
	}
}
