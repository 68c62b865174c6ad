package recovery

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

func TestDefaultPolicySurvivesItsOwnYAML(t *testing.T) {
	data, err := yaml.Marshal(DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParsePolicy(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultPolicy(), got); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

// The manifest repeats the defaults, for people to read and to change.
func TestManifestHasTheDefaultPolicy(t *testing.T) {
	data, err := os.ReadFile("../../../manifests/45-recovery.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	if err := yaml.UnmarshalStrict(data, &m); err != nil {
		t.Fatal(err)
	}
	got, err := ParsePolicy([]byte(m.Data["policy.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultPolicy(), got); diff != "" {
		t.Errorf("policy (-default +manifest):\n%s", diff)
	}
}

func TestPoliciesAreReadStrictly(t *testing.T) {
	const head = "apiVersion: gpu.lab.example/v1alpha1\nkind: RecoveryPolicy\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":         {"", "is  of , want RecoveryPolicy"},
		"no YAML":         {"{", "parse recovery policy"},
		"another kind":    {"apiVersion: gpu.lab.example/v1alpha1\nkind: GPUConfig\n", "is GPUConfig"},
		"another version": {"apiVersion: gpu.lab.example/v2\nkind: RecoveryPolicy\n", "v2"},
		"unknown field":   {head + "maxRetries: 3\n", "maxRetries"},
		"twice":           {head + "backoff: 5s\nbackoff: 6s\n", "backoff"},
		"unknown action":  {head + "rules: [{taint: gpu.lab.example/xid, action: Reboot}]\n", `action "Reboot"`},
		"attach":          {head + "rules: [{taint: gpu.lab.example/xid, action: Attach}]\n", `action "Attach"`},
		"foreign taint":   {head + "rules: [{taint: nic.example/xid, action: Reset}]\n", `taint "nic.example/xid"`},
		"no attempts":     {head + "maxAttempts: -1\n", "maxAttempts is -1"},
		"too many":        {head + "maxAttempts: 101\n", "maxAttempts is 101"},
		"no pause":        {head + "backoff: 1ms\n", "backoff of at least 1s"},
		"pauses shrink":   {head + "backoff: 1m\nmaxBackoff: 1s\n", "maxBackoff of at least backoff"},
		"forgets at once": {head + "forgetAfter: 1s\n", "forgetAfter of at least maxBackoff"},
		"large":           {head + strings.Repeat("#", maxPolicyBytes), "at most 65536 allowed"},
		"many rules":      {head + "rules:\n" + strings.Repeat("- {taint: gpu.lab.example/xid, action: Wait}\n", maxRules+1), "65 rules"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePolicy([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestTheActionThatPromisesLeastCounts(t *testing.T) {
	for name, c := range map[string]struct {
		taints []Taint
		want   v1alpha1.Operation
	}{
		"an XID":                      {[]Taint{{api.TaintXID, "48"}}, v1alpha1.OperationReset},
		"off the bus":                 {[]Taint{{api.TaintXID, "79"}}, v1alpha1.OperationWait},
		"too hot":                     {[]Taint{{api.TaintTelemetry, "hot"}}, v1alpha1.OperationProbe},
		"too hot and an XID":          {[]Taint{{api.TaintTelemetry, "hot"}, {api.TaintXID, "48"}}, v1alpha1.OperationReset},
		"lost and an XID":             {[]Taint{{api.TaintLost, "lost"}, {api.TaintXID, "48"}}, v1alpha1.OperationWait},
		"leaked":                      {[]Taint{{api.TaintLeaked, api.LeakMemory}}, v1alpha1.OperationReset},
		"wants a reset":               {[]Taint{{api.TaintRecovery, "gpu-reset"}}, v1alpha1.OperationReset},
		"wants a reboot":              {[]Taint{{api.TaintRecovery, "node-reboot"}}, v1alpha1.OperationWait},
		"something nobody thought of": {[]Taint{{api.DriverName + "/new", "x"}}, v1alpha1.OperationWait},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := DefaultPolicy().action(c.taints); got != c.want {
				t.Errorf("action %s, want %s", got, c.want)
			}
		})
	}
}

func TestPausesDoubleUpToTheirLimit(t *testing.T) {
	p := DefaultPolicy()
	var got []time.Duration
	for attempt := range int64(6) {
		got = append(got, p.wait(attempt+1))
	}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
}
