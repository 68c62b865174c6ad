package kubelets

import "fmt"

// Versions are those that the lab knows, oldest first: the two sides of the
// idle deadlock, the last one that made its health client lazily, the first
// that does not, and the newest.
func Versions() []Kubelet {
	return []Kubelet{{Version: "v1.34.0"}, {Version: "v1.34.4"}, {Version: "v1.35.4"}, {Version: "v1.36.3"}, {Version: "v1.37.2"}}
}

// Deviations compares the result with what is known of its version and returns
// a sentence for every difference. Only what does not depend on the machine's
// speed is compared; whether a round of churn leaves a stream behind does, so
// that a version which can is not held to it.
func (r *Result) Deviations() []string {
	var d deviations
	version := r.Name()
	d.unless(r.Registration.Accepted == 1, "%s made %d connections to one driver, want 1", version, r.Registration.Accepted)
	d.unless(r.Registration.Prepared == 2, "%s prepared %d of 2 claims", version, r.Registration.Prepared)
	d.unless(r.Registration.Reports > 0, "%s received no health", version)
	lazy := 0
	if r.Version < "v1.36" {
		lazy = 1
	}
	d.unless(r.Registration.Lazy == lazy, "%s logged %d lazily made health clients, want %d", version, r.Registration.Lazy, lazy)

	d.unless(r.Restart.DownError != "", "%s prepared a claim without a driver", version)
	d.unless(r.Restart.DownTook < callTimeout, "%s took %v to notice that the driver is gone", version, r.Restart.DownTook)
	d.unless(r.Restart.Accepted == 1, "%s made %d connections to the restarted driver, want 1", version, r.Restart.Accepted)
	d.unless(r.Restart.Prepared, "%s did not prepare with the restarted driver", version)
	d.unless(r.Restart.Clients == 1, "%s made %d gRPC connections over a restart, want 1", version, r.Restart.Clients)

	deadlocks := r.Version == "v1.34.0" || r.Version == "v1.34.1"
	d.unless(r.Idle.Prepared == !deadlocks, "%s prepared after an idle connection: %v, want %v (%s)", version, r.Idle.Prepared, !deadlocks, r.Idle.Error)
	d.unless(r.Idle.Hung == deadlocks, "%s hung after an idle connection: %v, want %v", version, r.Idle.Hung, deadlocks)

	for _, c := range []Churn{r.Churn, r.ChurnOneCPU} {
		if r.Mended {
			d.unless(c.Left == 0, "%s left %d health streams after %d rounds, want none", version, c.Left, c.Rounds)
		}
		d.unless(c.Left <= c.Rounds, "%s left %d health streams after %d rounds", version, c.Left, c.Rounds)
		d.unless((c.Retries > 0) == (c.Left > 0), "%s left %d health streams and logged %d failures of them", version, c.Left, c.Retries)
	}
	return d
}

type deviations []string

func (d *deviations) unless(ok bool, format string, a ...any) {
	if !ok {
		*d = append(*d, fmt.Sprintf(format, a...))
	}
}
