package live

import (
	"fmt"
	"time"

	"golang.org/x/mod/semver"
)

const (
	// What the log must be verbose enough for.
	verbosityConnections = 2
	verbosityClients     = 4

	// wipingDelay is how long a kubelet waits for a driver before it deletes
	// its ResourceSlices.
	wipingDelay = 30 * time.Second
	// noticing is for what a kubelet finds out at once, on a busy machine.
	noticing = 5 * time.Second
	// callTimeout is a kubelet's, for calls of a driver. A call of one that is
	// away must not last that long.
	callTimeout = 45 * time.Second
	// syncing is when a Pod's status has to show what only a sync of the Pod
	// brings there: kubelets sync each Pod every 60 to 90 s.
	syncing = 2 * time.Minute
)

// Deviations compares the result with what is known of its version, and returns
// a sentence for every difference.
func (r *Result) Deviations() []string {
	var d deviations
	if r.Error != "" {
		d.unless(false, "%s: %s", r.Version, r.Error)
		return d // what is missing says nothing about the kubelet
	}
	is := func(w Wait, what string) { d.unless(w.Came, "%s: %s: %s", r.Version, what, w) }
	within := func(w Wait, limit time.Duration, what string) {
		d.unless(w.Came && w.Took <= limit, "%s: %s: %s, want %s at most", r.Version, what, w, limit)
	}

	is(r.Connect.Registered, "registration")
	is(r.Connect.Healthy, "Healthy in the status of both Pods")
	d.unless(r.Connect.Accepted == 1, "%s: %d connections for registration, two Pods and health, want 1", r.Version, r.Connect.Accepted)
	d.unless(r.Connect.Prepares == 2, "%s: %d prepares for two Pods, want 2", r.Version, r.Connect.Prepares)
	if r.Verbosity >= verbosityClients {
		lazy := 0
		if semver.Compare(r.Version, "v1.36.0-0") < 0 {
			lazy = 1
		}
		d.unless(r.Connect.Made == 1, "%s: log lines about a gRPC connection made: %d, want 1", r.Version, r.Connect.Made)
		d.unless(r.Connect.Lazy == lazy, "%s: log lines about a health client made lazily: %d, want %d", r.Version, r.Connect.Lazy, lazy)
	}

	within(r.Silence.Reopened, 2*noticing, "health stream opened again after its end")
	within(r.Silence.Unknown, syncing, "Unknown in the Pod's status after the end of the health stream")
	within(r.Silence.Healthy, noticing, "Healthy in the Pod's status after the next report")
	d.unless(r.Silence.Accepted == 0, "%s: %d more connections after the end of the health stream, want none", r.Version, r.Silence.Accepted)

	if r.Verbosity >= verbosityConnections {
		within(r.Kill.Noticed, noticing, "driver's end noticed")
	}
	within(r.Kill.Failed, callTimeout, "prepare without a driver fails")
	is(r.Kill.Connected, "connection to the new process")
	is(r.Kill.Reopened, "health stream to the new process")
	is(r.Kill.Prepared, "prepare by the new process")
	d.unless(r.Kill.Accepted == 1, "%s: %d connections to the new process, want 1", r.Version, r.Kill.Accepted)
	d.unless(!r.Kill.Wiped || r.Kill.Away > wipingDelay-noticing, "%s: ResourceSlices wiped although the driver was away for %.0f s only", r.Version, r.Kill.Away.Seconds())

	is(r.Restart.Wiped, "ResourceSlices wiped by the new kubelet")
	is(r.Restart.Registered, "registration with the new kubelet")
	is(r.Restart.Republished, "ResourceSlices published again")
	is(r.Restart.Synced, "a report to the new kubelet in the Pod's status")
	d.unless(r.Restart.Prepares == 0, "%s: %d prepares of running Pods by the new kubelet, want none", r.Version, r.Restart.Prepares)
	d.unless(r.Restart.Accepted == 1, "%s: %d connections from the new kubelet, want 1", r.Version, r.Restart.Accepted)

	within(r.Death.Wiped, wipingDelay+3*noticing, "ResourceSlices of a driver that stays away wiped")
	d.unless(!r.Death.Wiped.Came || r.Death.Wiped.Took >= wipingDelay-time.Second, "%s: ResourceSlices wiped after %s already, want %s", r.Version, r.Death.Wiped, wipingDelay)
	return d
}

type deviations []string

func (d *deviations) unless(ok bool, format string, a ...any) {
	if !ok {
		*d = append(*d, fmt.Sprintf(format, a...))
	}
}
