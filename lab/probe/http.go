package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// UserAgent is what a kubelet of this version calls itself when it probes: that
// of v1.37.2 kube-probe/1.37.
func UserAgent(kubelet string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(kubelet, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return "kube-probe/" + major + "." + minor
}

// httpGet makes one request (pkg/probe/http).
func (h Handlers) httpGet(ctx context.Context, t Target, action *corev1.HTTPGetAction) Answer {
	req, err := request(ctx, t, action)
	if err != nil {
		return broken("GET", err)
	}
	a := Answer{Handler: "GET " + req.URL.String()}
	client := &http.Client{Transport: h.transport(action), CheckRedirect: sameHost}
	res, err := client.Do(req)
	if err != nil {
		if errors.Is(err, ErrNoWay) {
			return broken(a.Handler, err)
		}
		// Refused, timed out, no HTTP: all of it is a failure.
		a.Result, a.Output = Failure, err.Error()
		if errors.Is(context.Cause(ctx), errTimeout) {
			a.Output = fmt.Sprintf("%s: no answer within %s", a.Handler, t.Timeout)
		}
		return a
	}
	defer func() { _ = res.Body.Close() }() // it was only read
	// The rest of a longer body is not read, and is no reason to fail.
	body, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	if err != nil {
		// The kubelet takes a body that breaks off for an error and not for a
		// failure, and so ignores it.
		return broken(a.Handler, fmt.Errorf("read body: %w", err))
	}
	a.Output = string(body)
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		a.Result = Success
	case res.StatusCode >= 300 && res.StatusCode < 400:
		a.Result, a.Output = Warning, "redirected to another host, which counts as success: "+res.Header.Get("Location")
	default:
		a.Result, a.Output = Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", res.StatusCode)
	}
	return a
}

// transport has what the kubelet's has: no proxy, no verification, a connection
// per request. HTTPS may become HTTP/2 by itself.
func (h Handlers) transport(action *corev1.HTTPGetAction) *http.Transport {
	transport := &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet does; a Pod's certificate is for its clients
		DisableKeepAlives:  true,
		Proxy:              http.ProxyURL(nil),
		DisableCompression: true, // which sends no Accept-Encoding
		DialContext:        h.dial,
	}
	if action.Protocol != nil && *action.Protocol == corev1.HTTPProtocolHTTP2 {
		// Behind the gate H2CContainerProbe; where that is off, the API server
		// drops the field.
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
		return transport
	}
	return utilnet.SetTransportDefaults(transport)
}

// sameHost follows a redirect to the same host name, ten times at most. Any
// other ends the probe with the redirect as its answer.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// request is the kubelet's (pkg/probe/http/request.go).
func request(ctx context.Context, t Target, action *corev1.HTTPGetAction) (*http.Request, error) {
	port, err := resolve(action.Port, t.Container)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path} // too late to refuse it
	}
	target.Scheme = strings.ToLower(string(action.Scheme))
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	target.Host = net.JoinHostPort(orPodIP(action.Host, t), strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for _, h := range action.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", t.UserAgent)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	// Without a header, Host is "", which means the host of the URL.
	req.Host = req.Header.Get("Host")
	return req, nil
}
