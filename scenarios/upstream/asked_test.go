package upstream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/lab/kubesource"
	"github.com/dra-lab/dra-lab/scenarios/kubelets"
)

// A kubelet that somebody asks about is tried beside the reproduction's own
// versions. What becomes of it is no part of the verdict on them.
func TestKubeletsAskedAbout(t *testing.T) {
	mended := kubesource.Checkout{Dir: "/src/kubernetes", Base: "v1.37.2", Digest: "0a1b2c3d"}
	r := Reproduction{
		ID: "1", Title: "fails", Bad: []string{"v1.37.2"}, Good: []string{"v1.37.3"}, Bound: time.Minute, Package: true,
		Run: func(_ context.Context, s *Side) (Finding, error) {
			k := s.Kubelet()
			switch {
			case (k.Checkout != nil) != strings.Contains(k.Version, "+lab."):
				return Finding{}, errors.New("version and checkout do not go together")
			case k.Version == "v1.30.0":
				return Finding{}, errors.New("no such kubelet")
			}
			return Finding{Present: k.Version < "v1.37.2+"}, nil
		},
	}
	for name, c := range map[string]struct {
		asked   kubelets.Kubelet
		summary string
		line    string
		passed  bool
	}{
		"a mended checkout": {
			kubelets.FromCheckout(mended), "reproduced on v1.37.2, absent on v1.37.3; absent on v1.37.2+lab.0a1b2c3d",
			"v1.37.2+lab.0a1b2c3d (from /src/kubernetes, 0 s): absent", true,
		},
		"a release that has it": {
			kubelets.Kubelet{Version: "v1.36.3"}, "reproduced on v1.37.2, absent on v1.37.3; present on v1.36.3",
			"v1.36.3 (asked about, 0 s): present", false,
		},
		"one that cannot be tried": {
			kubelets.Kubelet{Version: "v1.30.0"}, "reproduced on v1.37.2, absent on v1.37.3; could not be tried on v1.30.0",
			"v1.30.0 (asked about, 0 s): could not be tried: no such kubelet", false,
		},
		"one of its own": {
			kubelets.Kubelet{Version: "v1.37.2"}, "reproduced on v1.37.2, absent on v1.37.3", "v1.37.2 (bad, 0 s): present", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := Run(t.Context(), r, Packages{}, c.asked)
			if got := result.summary(); got != c.summary {
				t.Errorf("verdict is %q, want %q", got, c.summary)
			}
			if result.Verdict != Reproduced || result.Passed() != c.passed {
				t.Errorf("%s, passed %v, want %v", result.Verdict, result.Passed(), c.passed)
			}
			var text strings.Builder
			if err := result.WriteText(&text); err != nil || !strings.Contains(text.String(), "\n  "+c.line+"\n") {
				t.Errorf("%v, text lacks %q:\n%s", err, c.line, &text)
			}
		})
	}
}
