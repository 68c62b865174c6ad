package live

import (
	"fmt"
	"time"
)

// Wait is how long something took, or was waited for in vain. Durations are
// nanoseconds in JSON.
type Wait struct {
	Took time.Duration `json:"took"`
	Came bool          `json:"came"`
}

func (w Wait) String() string {
	if !w.Came {
		return fmt.Sprintf("not within %.0f s", w.Took.Seconds())
	}
	if w.Took < 100*time.Millisecond {
		return fmt.Sprintf("%d ms", w.Took.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", w.Took.Seconds())
}

// step is one of the scenario.
type step int

const (
	looked step = iota
	connected
	silenced
	killed
	restarted
	died
)

// Result is what was seen of one kubelet.
type Result struct {
	Version string `json:"version"`
	// Verbosity is that of the kubelet's log, which decides what can be seen
	// there.
	Verbosity int `json:"verbosity"`
	// Done is how far the scenario was played, and Error why not to its end, if
	// it was not. What had not been measured by then is zero.
	Done  step   `json:"done"`
	Error string `json:"error,omitempty"`

	Connect Connect `json:"connect"`
	Silence Silence `json:"silence"`
	Kill    Kill    `json:"kill"`
	Restart Restart `json:"restart"`
	Death   Death   `json:"death"`

	Took time.Duration `json:"took"` // the whole scenario, tidying up included
}

// Connect is a driver that registers, prepares the claims of two Pods and
// reports their devices healthy.
type Connect struct {
	Registered Wait `json:"registered"` // after the kubelet could find it
	Healthy    Wait `json:"healthy"`    // both Pods' status, after both Pods ran
	Accepted   int  `json:"accepted"`   // connections, for all of it
	Prepares   int  `json:"prepares"`
	// Log lines about a gRPC connection made and about a health client made
	// lazily. They need verbosity 4.
	Made int `json:"made"`
	Lazy int `json:"lazy"`
}

// Silence is a driver whose health streams end, while the connection stays, and
// which says nothing on the new ones until the Pod's status shows it.
type Silence struct {
	Reopened Wait `json:"reopened"` // a stream, by the kubelet
	Unknown  Wait `json:"unknown"`  // the Pod's status, after the streams ended
	Healthy  Wait `json:"healthy"`  // the Pod's status, after the next report
	Accepted int  `json:"accepted"` // connections more: none if it stayed
}

// Kill is a driver that is killed and then started again on the same socket,
// which a new process makes anew. The registration socket stays.
type Kill struct {
	Noticed Wait `json:"noticed"` // by the kubelet, as its log has it; needs verbosity 2
	// Failed is from the creation of a Pod to the event that says that its
	// claims could not be prepared; Message is what the event says.
	Failed  Wait   `json:"failed"`
	Message string `json:"message,omitempty"`

	Away      time.Duration `json:"away"`      // until the new process was started
	Wiped     bool          `json:"wiped"`     // ResourceSlices, until the Pod ran
	Connected Wait          `json:"connected"` // after the new process was started
	Reopened  Wait          `json:"reopened"`  // a health stream, after the same
	Prepared  Wait          `json:"prepared"`  // that Pod runs, after the same
	Accepted  int           `json:"accepted"`  // connections, by the new process
}

// Restart is a kubelet that is restarted under running Pods.
type Restart struct {
	Wiped       Wait `json:"wiped"`       // ResourceSlices of the node
	Registered  Wait `json:"registered"`  // the driver, anew
	Republished Wait `json:"republished"` // ResourceSlices, by the driver's controller
	Synced      Wait `json:"synced"`      // a running Pod's status shows what was reported since
	Prepares    int  `json:"prepares"`    // of claims of running Pods, until then
	Accepted    int  `json:"accepted"`    // connections, from the new kubelet
}

// Death is a driver that is killed and stays away.
type Death struct {
	Wiped Wait `json:"wiped"` // its ResourceSlices
}
