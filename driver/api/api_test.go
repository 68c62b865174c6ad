package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
)

func TestInventoryShortForm(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want []string // profiles by index
		err  string
	}{
		{in: "h100:4", want: []string{"h100", "h100", "h100", "h100"}},
		{in: "h100:1,t4:2", want: []string{"h100", "t4", "t4"}},
		{in: "l4", want: []string{"l4"}},
		{in: "", err: `unknown profile ""`},
		{in: "h100:0", err: "count 0"},
		{in: "h100:-1", err: "count -1"},
		{in: "h100:many", err: `count "many" is not a number`},
		{in: "k80:1", err: `unknown profile "k80", have a100, b200`},
		{in: "h100:1000,t4:25", err: "1025 GPUs"},
		{in: "h100:1:mig,t4:shared", want: []string{"h100", "t4"}},
		{in: "t4:1:mig", err: `profile "t4" has no MIG mode, those that have are a100, b200, h100, h200`},
		{in: "l4:mig", err: `profile "l4" has no MIG mode`},
		{in: "h100:1:mig:shared", err: "either shared or in MIG mode"},
		{in: "h100:shared:mig", err: "either shared or in MIG mode"},
		{in: "h100:1:gim", err: `"gim" after the count, want shared or mig`},
		{in: "h100:1:2", err: `"2" after the count`},
		{in: "a100:65:mig", err: "65 GPUs in MIG mode, at most 64"},
	} {
		t.Run(tc.in, func(t *testing.T) {
			got, err := api.ParseGPUs(tc.in)
			if !matches(err, tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got.Profiles()); tc.err == "" && diff != "" {
				t.Errorf("profiles (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInventoryFile(t *testing.T) {
	for _, tc := range []struct{ name, in, want, err string }{
		{name: "one model", in: `{"gpus":[{"profile":"h100","count":4}]}`, want: "h100:4"},
		{name: "MIG mode", in: `{"gpus":[{"profile":"h100","count":4,"mig":true},{"profile":"t4","count":1,"shared":true}]}`, want: "h100:4:mig,t4:1:shared"},
		{name: "no MIG mode", in: `{"gpus":[{"profile":"l4","count":4,"mig":true}]}`, err: "no MIG mode"},
		{name: "unknown field", in: `{"gpus":[{"profile":"h100","count":4,"gim":true}]}`, err: "gim"},
		{name: "nothing", in: ``, err: "empty"},
		{name: "no GPUs", in: `{"gpus":[]}`, err: "no GPUs"},
		{name: "two values", in: `{"gpus":[{"profile":"h100","count":4}]}{}`, err: "follows"},
		{name: "huge", in: strings.Repeat(" ", 70000), err: "at most"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := api.ParseInventory([]byte(tc.in))
			if !matches(err, tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if tc.err == "" && got.String() != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
	if got := api.DefaultInventory().String(); got != api.DefaultGPUs {
		t.Errorf("the default inventory is %s, its short form %s", got, api.DefaultGPUs)
	}
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct{ name, in, err string }{
		{name: "none", in: `{"faults":[]}`},
		{name: "every kind", in: `{"faults":[{"id":"a","kind":"xid","code":79,"message":"m","since":"2026-01-02T03:04:05Z"},` +
			`{"id":"b","kind":"temperature","code":95},{"id":"c","kind":"pcie-width","code":4},{"id":"d","kind":"gpu-lost"},` +
			`{"id":"e","kind":"ecc-double"},{"id":"f","kind":"ecc-single"},{"id":"g","kind":"telemetry-unreadable"}]}`},
		{name: "unknown kind", in: `{"faults":[{"id":"a","kind":"fire"}]}`, err: `unknown kind "fire"`},
		{name: "unknown field", in: `{"faults":[{"id":"a","kind":"xid","code":79,"gpu":1}]}`, err: "gpu"},
		{name: "no code", in: `{"faults":[{"id":"a","kind":"xid"}]}`, err: "takes 1 to 999"},
		{name: "needless code", in: `{"faults":[{"id":"a","kind":"gpu-lost","code":1}]}`, err: "takes no code"},
		{name: "same id", in: `{"faults":[{"id":"a","kind":"gpu-lost"},{"id":"a","kind":"ecc-single"}]}`, err: "twice"},
		{name: "path as id", in: `{"faults":[{"id":"../a","kind":"gpu-lost"}]}`, err: "fault id"},
		{name: "long message", in: `{"faults":[{"id":"a","kind":"gpu-lost","message":"` + strings.Repeat("m", 513) + `"}]}`, err: "at most 512"},
		{name: "many", in: `{"faults":[` + strings.TrimSuffix(strings.Repeat(`{"id":"a","kind":"gpu-lost"},`, 65), ",") + `]}`, err: "at most 64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := api.ParseFaults([]byte(tc.in))
			if !matches(err, tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if err != nil {
				return
			}
			// What was read can be written and read again.
			data, err := f.Encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := api.ParseFaults(data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(f, again); diff != "" {
				t.Errorf("round trip (-first +second):\n%s", diff)
			}
		})
	}
}

func TestFaultGoesByItself(t *testing.T) {
	now := time.Now()
	until := now.Add(time.Second)
	if f := (api.Fault{Until: &until}); !f.Active(now) || f.Active(until) {
		t.Error("a fault is not active exactly before its end")
	}
	if !(api.Fault{}).Active(now) {
		t.Error("a fault without an end is not active")
	}
}

func TestProcesses(t *testing.T) {
	for _, tc := range []struct{ name, in, err string }{
		{name: "good", in: `{"pid":7,"bytes":1024,"name":"trainer"}`},
		{name: "no pid", in: `{"bytes":1024}`, err: "pid 0"},
		{name: "absurd pid", in: `{"pid":4294967297}`, err: "pid 4294967297"},
		{name: "negative memory", in: `{"pid":7,"bytes":-1}`, err: "bytes"},
		{name: "absurd memory", in: `{"pid":7,"bytes":9007199254740993}`, err: "at most"},
		{name: "long name", in: `{"pid":7,"name":"` + strings.Repeat("n", 257) + `"}`, err: "at most 256"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := api.ParseProcess([]byte(tc.in))
			if !matches(err, tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if err != nil {
				return
			}
			data, err := p.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := api.ParseProcess(data); err != nil || again != p {
				t.Errorf("round trip gives %v, %v", again, err)
			}
		})
	}
}

func TestDevicesFromEnviron(t *testing.T) {
	for _, tc := range []struct {
		name    string
		environ []string
		want    []api.DeviceRef
		err     string
	}{
		{name: "no GPU", environ: []string{"PATH=/bin"}},
		{
			name:    "one claim",
			environ: []string{"DRA_LAB_DEVICES=gpu-0=GPU-a,gpu-1=GPU-b", "DRA_LAB_DEVICE_GPU_0=gpu-0=GPU-a", "DRA_LAB_DEVICE_GPU_1=gpu-1=GPU-b"},
			want:    []api.DeviceRef{{Name: "gpu-0", UUID: "GPU-a"}, {Name: "gpu-1", UUID: "GPU-b"}},
		},
		{
			name:    "two claims, of which the runtime kept one list",
			environ: []string{"DRA_LAB_DEVICES=gpu-3=GPU-d", "DRA_LAB_DEVICE_GPU_3=gpu-3=GPU-d", "DRA_LAB_DEVICE_GPU_0=gpu-0=GPU-a"},
			want:    []api.DeviceRef{{Name: "gpu-0", UUID: "GPU-a"}, {Name: "gpu-3", UUID: "GPU-d"}},
		},
		{name: "contradiction", environ: []string{"DRA_LAB_DEVICES=gpu-0=GPU-a", "DRA_LAB_DEVICE_GPU_0=gpu-0=GPU-b"}, err: "both"},
		{name: "no UUID", environ: []string{"DRA_LAB_DEVICES=gpu-0"}, err: "name=uuid"},
		{name: "twice", environ: []string{"DRA_LAB_DEVICES=gpu-0=a,gpu-0=a"}, err: "twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := api.DevicesFromEnviron(tc.environ)
			if !matches(err, tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReportLine(t *testing.T) {
	want := api.Report{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Node: "n", Step: api.StepPrepared,
		ClaimUID: "u", ClaimNamespace: "default", ClaimName: "c", Device: "gpu-0",
		Detail: "multi\nline", Duration: 3 * time.Millisecond,
	}
	line, err := want.Line()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(line), "\n"); n != 1 {
		t.Errorf("a report takes %d lines", n)
	}
	got, ok := api.ParseReport(line)
	if !ok {
		t.Fatalf("%s is not read as a report", line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
}

func TestOtherLinesAreNoReports(t *testing.T) {
	for _, line := range []string{
		"", "I1130 12:00:00 driver.go:1] Started", `{"msg":"x"}`, `{"report":{}}`,
		`{"report":{"step":"prepared"}}`, `{"report":{"time":"2026-01-02T03:04:05Z"}}`, `{"report":{"time":`,
		`{"report":{"time":"2026-01-02T03:04:05Z","step":"x","detail":"` + strings.Repeat("d", 20000) + `"}}`,
	} {
		if r, ok := api.ParseReport([]byte(line)); ok {
			t.Errorf("%.60q is read as %+v", line, r)
		}
	}
	// A field of a newer driver does no harm.
	if _, ok := api.ParseReport([]byte(`{"report":{"time":"2026-01-02T03:04:05Z","step":"x","colour":"red"}}`)); !ok {
		t.Error("a report with an additional field is not read")
	}
}

func FuzzParseFaults(f *testing.F) {
	f.Add([]byte(`{"faults":[{"id":"a","kind":"xid","code":79}]}`))
	f.Add([]byte(`{"faults":[{"id":"a","kind":"gpu-lost","until":"2026-01-02T03:04:05Z"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		faults, err := api.ParseFaults(data)
		if err != nil {
			return
		}
		if _, err := faults.Encode(); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}

// matches says whether err is what the test wants: nil, or an error with text.
func matches(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}
