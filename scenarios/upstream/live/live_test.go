package live

import (
	"strings"
	"testing"
	"time"
)

// asKnown is a result of a kubelet that does what is known of its version.
func asKnown(version string) *Result {
	after := func(d time.Duration) Wait { return Wait{Took: d, Came: true} }
	r := &Result{
		Version: version, Verbosity: 4, Done: died,
		Connect: Connect{Registered: after(time.Second), Healthy: after(time.Second), Accepted: 1, Prepares: 2, Made: 1},
		Silence: Silence{Reopened: after(5 * time.Second), Unknown: after(80 * time.Second), Healthy: after(time.Millisecond)},
		Kill: Kill{
			Noticed: after(time.Millisecond), Failed: after(time.Second), Away: 3 * time.Second,
			Connected: after(time.Second), Reopened: after(5 * time.Second), Prepared: after(9 * time.Second), Accepted: 1,
		},
		Restart: Restart{
			Wiped: after(time.Second), Registered: after(2 * time.Second), Republished: after(31 * time.Second),
			Synced: after(2 * time.Second), Accepted: 1,
		},
		Death: Death{Wiped: after(30 * time.Second)},
	}
	if version < "v1.36" {
		r.Connect.Lazy = 1
	}
	return r
}

func TestNoDeviations(t *testing.T) {
	for _, version := range []string{"v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2"} {
		if got := asKnown(version).Deviations(); len(got) > 0 {
			t.Errorf("%s: %q", version, got)
		}
	}
	// A log that says nothing is no evidence.
	quiet := asKnown("v1.35.4")
	quiet.Verbosity, quiet.Connect.Made, quiet.Connect.Lazy, quiet.Kill.Noticed = 0, 0, 0, Wait{Took: time.Minute}
	if got := quiet.Deviations(); len(got) > 0 {
		t.Errorf("verbosity 0: %q", got)
	}
	// Nor is a driver that was away for too long on a slow machine.
	slow := asKnown("v1.37.2")
	slow.Kill.Away, slow.Kill.Wiped = 40*time.Second, true
	if got := slow.Deviations(); len(got) > 0 {
		t.Errorf("away for 40 s: %q", got)
	}
}

func TestDeviations(t *testing.T) {
	vain := Wait{Took: time.Minute}
	for want, change := range map[string]func(*Result){
		"no worker": func(r *Result) { *r = Result{Version: r.Version, Error: "no worker"} },
		"2 connections for registration, two Pods and health":       func(r *Result) { r.Connect.Accepted = 2 },
		"1 prepares for two Pods":                                   func(r *Result) { r.Connect.Prepares = 1 },
		"health client made lazily: 1, want 0":                      func(r *Result) { r.Connect.Lazy = 1 },
		"gRPC connection made: 3, want 1":                           func(r *Result) { r.Connect.Made = 3 },
		"Healthy in the status of both Pods: not within 60 s":       func(r *Result) { r.Connect.Healthy = vain },
		"opened again after its end: not within 60 s":               func(r *Result) { r.Silence.Reopened = vain },
		"Unknown in the Pod's status":                               func(r *Result) { r.Silence.Unknown.Took = 3 * time.Minute },
		"Healthy in the Pod's status after the next report":         func(r *Result) { r.Silence.Healthy = vain },
		"1 more connections after the end of the health stream":     func(r *Result) { r.Silence.Accepted = 1 },
		"driver's end noticed: 20.0 s":                              func(r *Result) { r.Kill.Noticed.Took = 20 * time.Second },
		"prepare without a driver fails: 50.0 s":                    func(r *Result) { r.Kill.Failed.Took = 50 * time.Second },
		"prepare by the new process: not within":                    func(r *Result) { r.Kill.Prepared = vain },
		"0 connections to the new process":                          func(r *Result) { r.Kill.Accepted = 0 },
		"wiped although the driver was away for 3 s only":           func(r *Result) { r.Kill.Wiped = true },
		"wiped by the new kubelet: not within":                      func(r *Result) { r.Restart.Wiped = vain },
		"2 prepares of running Pods":                                func(r *Result) { r.Restart.Prepares = 2 },
		"2 connections from the new kubelet":                        func(r *Result) { r.Restart.Accepted = 2 },
		"ResourceSlices wiped after 3.0 s already, want 30s":        func(r *Result) { r.Death.Wiped.Took = 3 * time.Second },
		"a driver that stays away wiped: not within 60 s, want 45s": func(r *Result) { r.Death.Wiped = vain },
	} {
		r := asKnown("v1.37.2")
		change(r)
		got := r.Deviations()
		if len(got) != 1 || !strings.HasPrefix(got[0], "v1.37.2: ") || !strings.Contains(got[0], want) {
			t.Errorf("%q, want one with %q", got, want)
		}
	}
	old := asKnown("v1.35.4")
	old.Connect.Lazy = 0
	if got := old.Deviations(); len(got) != 1 || !strings.Contains(got[0], "made lazily: 0, want 1") {
		t.Errorf("v1.35.4 without a lazily made client: %q", got)
	}
}

func TestReport(t *testing.T) {
	quiet := asKnown("v1.36.3")
	quiet.Verbosity = 0
	// What was not measured is not shown as if it had not happened.
	early := asKnown("v1.35.4")
	early.Done, early.Error = connected, "no stream"
	report := Report{quiet, asKnown("v1.37.2"), early}
	var text, markdown strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ got, want string }{
		"head":       {text.String(), "v1.36.3               v1.37.2   v1.35.4"},
		"invisible":  {text.String(), "made lazily                 not visible at -v=0   0"},
		"Markdown":   {markdown.String(), "| driver killed: kubelet's log says so after | not visible at -v=0 | 1 ms | - |"},
		"deviations": {strings.Join(report.Deviations(), "\n"), "v1.35.4: no stream"},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("%s: no %q in\n%s", what, c.want, c.got)
		}
	}
}

func TestLogTime(t *testing.T) {
	const line = `1764573613.123456 node kubelet[42]: I1201 07:20:13.123456      42 manager.go:1] "Connection changed" connected=false`
	got, err := logTime(line)
	if want := time.Unix(1764573613, 123456000); err != nil || !got.Equal(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, line := range []string{"", "-- Journal begins", "noon node kubelet"} {
		if _, err := logTime(line); err == nil {
			t.Errorf("%q has a time", line)
		}
	}
}
