package upstream

import (
	"context"
	"strings"
	"time"

	"github.com/dra-lab/dra-lab/scenarios/kubelets"
)

// What needs the plugin manager only. The first run of a version compiles it,
// which the bound allows for.
const packageBound = 30 * time.Minute

func lazyHealthClient() Reproduction {
	return Reproduction{
		ID: "133943", Title: "the health client is made lazily, in the first health call",
		Links: []string{issue("133943"), pull("133964")},
		Bad:   []string{"v1.34.4", "v1.35.4"}, Good: []string{"v1.36.3", "v1.37.2"},
		Observable: "a log line about it right after registration",
		Note:       "no symptom beyond that: there is one connection either way, made at registration",
		Bound:      packageBound, Package: true,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			first, then, err := kubelets.MeasureRegistration(ctx, s.Kubelet(), kubelets.Options{})
			f.Present = first.Lazy > 0
			f.add("log lines about a health client made lazily: %d", first.Lazy)
			f.add("connections accepted: %d by the driver, %d after its restart", first.Accepted, then.Accepted)
			return f, err
		},
	}
}

func idleDeadlock() Reproduction {
	return Reproduction{
		ID: "133920", Title: "a connection that goes idle deadlocks the kubelet's DRA plugin",
		Links: []string{issue("133920"), pull("133926"), pull("133934")},
		Bad:   []string{"v1.34.0"}, Good: []string{"v1.34.4", "v1.37.2"},
		Observable: "a prepare after the idle timeout never returns",
		Note:       "gRPC's idle timeout is 1 s here instead of 30 minutes",
		Bound:      packageBound, Package: true,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			idle, err := kubelets.MeasureIdle(ctx, s.Kubelet(), kubelets.Options{})
			f.Present = idle.Hung
			f.add("prepare after the idle timeout: prepared %v, hung %v after %.1f s, error %q", idle.Prepared, idle.Hung, idle.Took.Seconds(), idle.Error)
			for line := range strings.Lines(idle.Stack) {
				if !strings.HasPrefix(line, "\t") {
					f.add("%s", strings.TrimSpace(line))
				}
			}
			return f, err
		},
	}
}

func lostHealthStream() Reproduction {
	return Reproduction{
		ID: "health-stream", Title: "a health stream outlives its plugin when that deregisters right away",
		Links:      []string{"scenarios/upstream/healthstream/issue.md"},
		Bad:        []string{"v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2"},
		Observable: "goroutines that fail every 5 s for good, after registering and deregistering again and again",
		Note:       "found by this project, not reported yet; the mend is beside the report",
		Bound:      packageBound, Package: true,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			// A few of 1,000 rounds do it, on some runs none.
			for batch := 0; batch < 5 && !f.Present; batch++ {
				churn, err := kubelets.MeasureChurn(ctx, s.Kubelet(), kubelets.Options{Rounds: 5000}, true)
				if err != nil {
					return f, err
				}
				f.Present = churn.Left > 0 && churn.Retries > 0
				f.add("%d rounds left %d health streams, which logged %d failures in the %.0f s after", churn.Rounds, churn.Left, churn.Retries, churn.Watched.Seconds())
				if churn.Line != "" {
					f.add("%s", churn.Line)
				}
			}
			return f, nil
		},
	}
}
