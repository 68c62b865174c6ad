package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/host/gpu/gputest"
	"github.com/dra-lab/dra-lab/lab/install"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestChooseGPUs(t *testing.T) {
	noUVM := []byte("rm dev/nvidia-uvm\n")
	none := []byte("rm proc/driver\nrm dev\nrm sys\n")
	for name, tc := range map[string]struct {
		flag   string
		change []byte
		engine host.Engine
		want   install.Mode
		says   string // part of what the user reads
		err    string
	}{
		"auto with GPUs":                 {flag: "auto", want: install.Passthrough, says: "GPUs: the host's own, 2 with NVIDIA driver 570.86.15 (NVIDIA H100 80GB HBM3)"},
		"auto without":                   {flag: "auto", change: none, want: install.Simulated, says: "GPUs: simulated (h100:4), because this host has no NVIDIA GPU"},
		"auto with a fault":              {flag: "auto", change: noUVM, want: install.Simulated, says: "because no device node /dev/nvidia-uvm"},
		"passthrough":                    {flag: "passthrough", want: install.Passthrough, says: "GPUs: the host's own"},
		"passthrough insists":            {flag: "passthrough", change: noUVM, err: "pass GPUs through: no device node /dev/nvidia-uvm"},
		"passthrough without":            {flag: "passthrough", change: none, err: "pass GPUs through: this host has no NVIDIA GPU"},
		"passthrough elsewhere":          {flag: "passthrough", engine: host.Engine{Host: "ssh://far"}, err: "the container engine is on another machine"},
		"simulated looks at no hardware": {flag: "simulated=t4:2", want: install.Simulated},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			l := &lab{ui: ui.New(io.Discard, &said, 0)}
			flag, err := install.ParseGPUs(tc.flag)
			if err != nil {
				t.Fatal(err)
			}
			got, source, err := l.chooseGPUs(t.Context(), &tc.engine, upOptions{driverRoot: gputest.Root(t, tc.change)}, flag)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || ui.Hint(err) == "" {
					t.Errorf("error %v, hint %q; want %q and a hint", err, ui.Hint(err), tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Mode() != tc.want || (source != nil) != (tc.want == install.Passthrough) {
				t.Errorf("mode %s, source %v; want %s", got.Mode(), source, tc.want)
			}
			if !strings.Contains(said.String(), tc.says) || (tc.says == "") != (said.Len() == 0) {
				t.Errorf("it says %q, want %q", &said, tc.says)
			}
		})
	}
}
