package reach

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// throughAPI returns the way into containers through the API server: over a
// WebSocket, or over SPDY where the API server, or a proxy before it, has none.
func throughAPI(config *rest.Config) (probe.Exec, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return func(ctx context.Context, t probe.Target, command []string) ([]byte, error) {
		location := podURL(client, t, "exec", &corev1.PodExecOptions{Container: t.Container.Name, Command: command, Stdout: true, Stderr: true})
		websocket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, location.String())
		if err != nil {
			return nil, fmt.Errorf("exec in container %q: %w", t.Container.Name, err)
		}
		spdy, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, location)
		if err != nil {
			return nil, fmt.Errorf("exec in container %q: %w", t.Container.Name, err)
		}
		executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, noWebSocket)
		if err != nil {
			return nil, fmt.Errorf("exec in container %q: %w", t.Container.Name, err)
		}
		var stdout, stderr head
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
		// As the kubelet has them: one after the other.
		output := append(stdout.bytes(), stderr.bytes()...)
		if err != nil {
			return output, fmt.Errorf("exec in container %q: %w", t.Container.Name, err)
		}
		return output, nil
	}, nil
}

func noWebSocket(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

func podURL(client kubernetes.Interface, t probe.Target, subresource string, options *corev1.PodExecOptions) *url.URL {
	req := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(t.Namespace).Name(t.Pod).SubResource(subresource)
	if options != nil {
		req = req.VersionedParams(options, scheme.ParameterCodec)
	}
	return req.URL()
}

// head keeps the first bytes of a stream, and takes all of it: a command that
// writes much has to be able to end. Who writes may go on after a context has
// ended.
type head struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

const maxHead = 10 << 10 // as much as the kubelet looks at

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept.Write(p[:min(len(p), maxHead-h.kept.Len())])
	return len(p), nil
}

func (h *head) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Clone(h.kept.Bytes())
}
