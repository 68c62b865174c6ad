// Package recovery decides what is done about devices that are not well: which
// policy there is for what the driver says of them, and which step of it is
// next. It is pure: devices, operations and time in, writes out.
package recovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// PolicyKind is the kind of a Policy.
const PolicyKind = "RecoveryPolicy"

// Bounds of a policy.
const (
	maxPolicyBytes = 64 << 10
	maxRules       = 64
	maxTries       = 100
)

// Policy says what is done about which condition of a device. The zero value of
// a field that may be missing means the default in DefaultPolicy.
type Policy struct {
	APIVersion string `json:"apiVersion"` // v1alpha1.APIVersion
	Kind       string `json:"kind"`       // PolicyKind
	// Rules are looked at in their order; the first that has the taint of a
	// device counts. A taint that no rule has waits for an operator.
	Rules []Rule `json:"rules"`
	// MaxAttempts is how often a device is probed or reset before that is given
	// up.
	MaxAttempts int64 `json:"maxAttempts,omitempty"`
	// Backoff is the wait after the first attempt; it doubles with each one
	// that follows, up to MaxBackoff.
	Backoff    metav1.Duration `json:"backoff,omitzero"`
	MaxBackoff metav1.Duration `json:"maxBackoff,omitzero"`
	// ForgetAfter is how long a device has to be well before its attempts no
	// longer count.
	ForgetAfter metav1.Duration `json:"forgetAfter,omitzero"`
}

// Rule is what is done about one kind of taint.
type Rule struct {
	Taint string `json:"taint"` // the taint's key
	// Values are the taint's values that are meant; none means all.
	Values []string           `json:"values,omitempty"`
	Action v1alpha1.Operation `json:"action"` // Wait, Probe, Reset or Replace
}

// DefaultPolicy resets what a reset mends: XIDs, memory errors, what is left
// behind by a claim. A GPU that fell off the bus (XID 79) or is lost cannot be
// reset, as its vendor says; too hot or on a narrow link it is asked again.
func DefaultPolicy() Policy {
	return Policy{
		APIVersion: v1alpha1.APIVersion, Kind: PolicyKind,
		Rules: []Rule{
			{Taint: api.TaintXID, Values: []string{"79"}, Action: v1alpha1.OperationWait},
			{Taint: api.TaintXID, Action: v1alpha1.OperationReset},
			{Taint: api.TaintECC, Action: v1alpha1.OperationReset},
			{Taint: api.TaintRecovery, Values: []string{"gpu-reset", "drain-and-reset"}, Action: v1alpha1.OperationReset},
			{Taint: api.TaintRecovery, Action: v1alpha1.OperationWait},
			{Taint: api.TaintLeaked, Action: v1alpha1.OperationReset},
			{Taint: api.TaintTelemetry, Action: v1alpha1.OperationProbe},
			{Taint: api.TaintLost, Action: v1alpha1.OperationWait},
		},
		MaxAttempts: 3,
		Backoff:     metav1.Duration{Duration: 5 * time.Second},
		MaxBackoff:  metav1.Duration{Duration: time.Minute},
		ForgetAfter: metav1.Duration{Duration: 10 * time.Minute},
	}
}

// ParsePolicy reads a policy strictly: a rule that is silently ignored would
// leave a device unrepaired, or reset one that must not be.
func ParsePolicy(data []byte) (Policy, error) {
	if len(data) > maxPolicyBytes {
		return Policy{}, fmt.Errorf("parse recovery policy: %d bytes, at most %d allowed", len(data), maxPolicyBytes)
	}
	var p Policy
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		return Policy{}, fmt.Errorf("parse recovery policy: %w", err)
	}
	p = p.withDefaults()
	if err := p.validate(); err != nil {
		return Policy{}, fmt.Errorf("parse recovery policy: %w", err)
	}
	return p, nil
}

func (p Policy) withDefaults() Policy {
	d := DefaultPolicy()
	if p.MaxAttempts == 0 {
		p.MaxAttempts = d.MaxAttempts
	}
	for _, f := range []struct{ value, standard *metav1.Duration }{
		{&p.Backoff, &d.Backoff}, {&p.MaxBackoff, &d.MaxBackoff}, {&p.ForgetAfter, &d.ForgetAfter},
	} {
		if f.value.Duration == 0 {
			*f.value = *f.standard
		}
	}
	return p
}

func (p Policy) validate() error {
	if p.APIVersion != v1alpha1.APIVersion || p.Kind != PolicyKind {
		return fmt.Errorf("is %s of %s, want %s of %s", p.Kind, p.APIVersion, PolicyKind, v1alpha1.APIVersion)
	}
	if len(p.Rules) > maxRules {
		return fmt.Errorf("%d rules, at most %d allowed", len(p.Rules), maxRules)
	}
	if p.MaxAttempts < 1 || p.MaxAttempts > maxTries {
		return fmt.Errorf("maxAttempts is %d, want 1 to %d", p.MaxAttempts, maxTries)
	}
	if p.Backoff.Duration < time.Second || p.MaxBackoff.Duration < p.Backoff.Duration || p.ForgetAfter.Duration < p.MaxBackoff.Duration {
		return errors.New("want backoff of at least 1s, maxBackoff of at least backoff, and forgetAfter of at least maxBackoff")
	}
	for i, r := range p.Rules {
		if !strings.HasPrefix(r.Taint, api.DriverName+"/") {
			return fmt.Errorf("rule %d: taint %q is not one of the driver's, which begin with %s/", i, r.Taint, api.DriverName)
		}
		if severity(r.Action) < 0 {
			return fmt.Errorf("rule %d: action %q, want Wait, Probe, Reset or Replace", i, r.Action)
		}
	}
	return nil
}

// severity orders the actions: of several that a device needs, the one counts
// that promises least. A GPU that is lost is not reset because it also has an
// XID.
func severity(o v1alpha1.Operation) int {
	return slices.Index([]v1alpha1.Operation{
		v1alpha1.OperationProbe, v1alpha1.OperationReset, v1alpha1.OperationReplace, v1alpha1.OperationWait,
	}, o)
}

// action is what the policy says about a device's taints, of which there must be
// one, and which of them says so.
func (p Policy) action(taints []Taint) (v1alpha1.Operation, Taint) {
	var action v1alpha1.Operation
	var because Taint
	for _, t := range taints {
		if a := p.rule(t); severity(a) > severity(action) {
			action, because = a, t
		}
	}
	return action, because
}

func (p Policy) rule(t Taint) v1alpha1.Operation {
	for _, r := range p.Rules {
		if r.Taint == t.Key && (len(r.Values) == 0 || slices.Contains(r.Values, t.Value)) {
			return r.Action
		}
	}
	return v1alpha1.OperationWait
}

// wait is how long after an attempt the next one may come.
func (p Policy) wait(attempt int64) time.Duration {
	d := p.Backoff.Duration
	for ; attempt > 1 && d < p.MaxBackoff.Duration; attempt-- {
		d *= 2
	}
	return min(d, p.MaxBackoff.Duration)
}
