package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// apiServer speaks SPDY and no WebSocket, as API servers did and some proxies do.
// Port-forwards reach this machine; commands are answered by name.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != spdy.HeaderSpdy31 {
			http.Error(w, "no such upgrade", http.StatusBadRequest)
			return
		}
		exec := strings.HasSuffix(r.URL.Path, "/namespaces/ns/pods/pod/exec")
		if !exec && !strings.HasSuffix(r.URL.Path, "/namespaces/ns/pods/pod/portforward") {
			http.Error(w, "pods not found", http.StatusNotFound)
			return
		}
		protocol := "portforward.k8s.io"
		if exec {
			protocol = "v4.channel.k8s.io"
		}
		if _, err := httpstream.Handshake(r, w, []string{protocol}); err != nil {
			return
		}
		streams := make(chan httpstream.Stream, 8)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
		if conn == nil {
			return
		}
		// It ends with the connection, which the client closes: TestMain looks.
		go func() {
			defer conn.Close()
			byKind := map[string]httpstream.Stream{}
			want := 2 // error and data
			if exec {
				want = 3 // error, stdout and stderr
			}
			for len(byKind) < want {
				select {
				case s := <-streams:
					byKind[s.Headers().Get(corev1.StreamType)] = s
				case <-conn.CloseChan():
					return
				}
			}
			if exec {
				command(r.URL.Query()["command"], byKind)
				<-conn.CloseChan()
				return
			}
			relay(byKind[corev1.StreamTypeData], byKind[corev1.StreamTypeError])
			<-conn.CloseChan()
		}()
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func command(argv []string, streams map[string]httpstream.Stream) {
	status := metav1.Status{Status: metav1.StatusSuccess}
	fmt.Fprint(streams[corev1.StreamTypeStderr], "(err)")
	fmt.Fprint(streams[corev1.StreamTypeStdout], strings.Join(argv, " "))
	switch argv[0] {
	case "false":
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "7"}}}}
	case "missing":
		status = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: "executable file not found"}
	case "hangs":
		return
	}
	data, _ := json.Marshal(status)
	_, _ = streams[corev1.StreamTypeError].Write(data)
	for _, s := range streams {
		_ = s.Close()
	}
}

func relay(data, trouble httpstream.Stream) {
	defer trouble.Close()
	defer data.Close()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", data.Headers().Get(corev1.PortHeader)))
	if err != nil {
		fmt.Fprintf(trouble, "failed to connect to localhost: %v", err)
		return
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, data)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(data, conn)
}

func TestPortForward(t *testing.T) {
	server, target := web(t)
	// Not this machine's: it is the way that makes it so.
	target.PodIP = "192.0.2.7"
	prober, err := PortForward(apiServer(t))
	if err != nil {
		t.Fatal(err)
	}
	if a := prober.Probe(t.Context(), target); a.Err != nil || a.Result != probe.Success || a.Output != "/" {
		t.Errorf("HTTP: %+v, want success", a)
	}
	port := int(target.Container.Ports[0].ContainerPort)
	tcp := target
	tcp.Handler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}
	if a := prober.Probe(t.Context(), tcp); a.Err != nil || a.Result != probe.Success {
		t.Errorf("TCP: %+v, want success", a)
	}
	elsewhere := target
	elsewhere.Handler = *target.Handler.DeepCopy()
	elsewhere.Handler.HTTPGet.Host = "example.com"
	if a := prober.Probe(t.Context(), elsewhere); a.Err == nil || !strings.Contains(a.Err.Error(), "reaches only the Pod") {
		t.Errorf("another host: %+v, want an error", a)
	}
	gone := target
	gone.Pod = "gone"
	if a := prober.Probe(t.Context(), gone); a.Err == nil || !strings.Contains(a.Err.Error(), "not found") {
		t.Errorf("a Pod that is not there: %+v, want an error", a)
	}
	// A slow one ends with its time, and leaves nothing (TestMain looks).
	slow := target
	slow.Handler = *target.Handler.DeepCopy()
	slow.Handler.HTTPGet.Path = "/slow"
	slow.Timeout = 200 * time.Millisecond
	if a := prober.Probe(t.Context(), slow); a.Err != nil || a.Result != probe.Failure || !strings.Contains(a.Output, "no answer within 200ms") {
		t.Errorf("slow: %+v, want a failure", a)
	}
	server.Close()
	for name, refused := range map[string]probe.Target{"HTTP": target, "TCP": tcp} {
		if a := prober.Probe(t.Context(), refused); a.Err != nil || a.Result != probe.Failure || !strings.Contains(a.Output, "connection refused") {
			t.Errorf("%s refused: %+v, want a failure that says so", name, a)
		}
	}
}

func TestExecThroughTheAPIServer(t *testing.T) {
	prober, err := PortForward(apiServer(t))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(timeout time.Duration, argv ...string) probe.Answer {
		return prober.Probe(t.Context(), probe.Target{
			Namespace: "ns", Pod: "pod", Timeout: timeout, Container: corev1.Container{Name: "app"},
			Handler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: argv}},
		})
	}
	if a := answer(10*time.Second, "true", "x"); a.Err != nil || a.Result != probe.Success || a.Output != "true x(err)" {
		t.Errorf("status 0: %+v, want success with stdout and stderr", a)
	}
	if a := answer(10*time.Second, "false"); a.Err != nil || a.Result != probe.Failure || a.Output != "false(err)" {
		t.Errorf("status 7: %+v, want a failure", a)
	}
	if a := answer(10*time.Second, "missing"); a.Err == nil || !strings.Contains(a.Err.Error(), "executable file not found") {
		t.Errorf("no such file: %+v, want an error", a)
	}
	if a := answer(200*time.Millisecond, "hangs"); a.Err != nil || a.Result != probe.Failure || !strings.Contains(a.Output, "timed out after 200ms") {
		t.Errorf("hangs: %+v, want a failure", a)
	}
}

func TestHeadTakesEverythingAndKeepsTheBeginning(t *testing.T) {
	var h head
	for range 100 {
		if n, err := h.Write(make([]byte, 1000)); n != 1000 || err != nil {
			t.Fatalf("Write = %d, %v; want 1000", n, err)
		}
	}
	if len(h.bytes()) != maxHead {
		t.Errorf("%d bytes kept, want %d", len(h.bytes()), maxHead)
	}
}

func TestFollowEndsWithThePod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "1"}}
	for name, end := range map[string]func(*fake.Clientset) error{
		"deleted": func(c *fake.Clientset) error {
			return c.CoreV1().Pods("ns").Delete(t.Context(), "pod", metav1.DeleteOptions{})
		},
		"replaced": func(c *fake.Clientset) error {
			other := pod.DeepCopy()
			other.UID = types.UID("2")
			_, err := c.CoreV1().Pods("ns").Update(t.Context(), other, metav1.UpdateOptions{})
			return err
		},
	} {
		client := fake.NewClientset(pod)
		seen := make(chan *corev1.Pod, 8)
		ended := make(chan error, 1)
		go func() { ended <- Follow(t.Context(), client, pod, func(p *corev1.Pod) { seen <- p }) }()
		<-seen
		changed := pod.DeepCopy()
		changed.Status.PodIP = "10.0.0.1"
		if _, err := client.CoreV1().Pods("ns").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for p := range seen {
			if p.Status.PodIP != "" {
				break
			}
		}
		if err := end(client); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, ErrPodGone) {
			t.Errorf("%s: Follow ended with %v, want %v", name, err, ErrPodGone)
		}
	}
}

func TestUserAgentIsThatOfTheNodesKubelet(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node.Status.NodeInfo.KubeletVersion = "v1.36.3"
	client := fake.NewClientset(node)
	if got, err := UserAgent(context.Background(), client, "node"); err != nil || got != "kube-probe/1.36" {
		t.Errorf("UserAgent = %q, %v; want kube-probe/1.36", got, err)
	}
}
