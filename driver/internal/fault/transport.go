package fault

import (
	"io"
	"net/http"
)

// Transport is next as long as the API server can be reached. When it cannot,
// calls fail before they leave, and what streams that are open bring is lost.
func (f *Faults) Transport(next http.RoundTripper) http.RoundTripper {
	if f == nil {
		return next
	}
	return &transport{faults: f, next: next}
}

type transport struct {
	faults *Faults
	next   http.RoundTripper
}

// RoundTrip is http.RoundTripper's.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.faults.Pass(r.Context(), API); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper must, also when it fails
		}
		return nil, err
	}
	resp, err := t.next.RoundTrip(r)
	if err == nil {
		resp.Body = &body{ReadCloser: resp.Body, request: r, faults: t.faults}
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	request *http.Request
	faults  *Faults
}

// Read is io.Reader's.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if cut := b.faults.Pass(b.request.Context(), API); cut != nil {
		return 0, cut
	}
	return n, err
}
