package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for _, tc := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{args: []string{"-help"}, code: exitDone, stderr: "name of this node, and of its pool ($NODE_NAME)"},
		{args: nil, code: exitUsage, stderr: "driver: error: no node name: set -node-name or $NODE_NAME"},
		{args: []string{"-node-name=n", "extra"}, code: exitUsage, stderr: `unexpected argument "extra"`},
		{args: []string{"-node-name=n", "-gpus=imaginary"}, code: exitUsage, stderr: `-gpus "imaginary"`},
		{args: []string{"-node-name=n", "-gpus=simulated=t4"}, code: exitFailed, stderr: "configure API client"},
		{args: []string{"-node-name=n", "-gpus=simulated=t4:none"}, code: exitUsage, stderr: `-gpus: parse GPUs "t4:none"`},
		{args: []string{"-node-name=n", "-kubelet-dir=var/lib"}, code: exitUsage, stderr: `-kubelet-dir "var/lib": want an absolute path`},
		{args: []string{"-node-name=n", "-ignored-xids=13,x"}, code: exitUsage, stderr: `XIDs "13,x": "x"`},
		{args: []string{"-node-name=n", "-taint-effects=xid=Evict"}, code: exitUsage, stderr: `effect "Evict" of xid`},
		{args: []string{"-node-name=n", "-gpus=passthrough", "-driver-root=here"}, code: exitUsage, stderr: `-driver-root "here": want an absolute path`},
		{args: []string{"-unknown"}, code: exitUsage, stderr: "-unknown"},
		{args: []string{"-node-name=n", "-kubeconfig=/does/not/exist"}, code: exitFailed, stderr: "driver: error: configure API client"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tc.args, &stdout, &stderr); code != tc.code {
				t.Errorf("exit status %d, want %d", code, tc.code)
			}
			if !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("stderr is %q, want %q", stderr.String(), tc.stderr)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout is %q", stdout.String())
			}
		})
	}
}

func TestNodeNameComesFromTheEnvironment(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	t.Setenv("POD_UID", "uid-1")
	var stderr bytes.Buffer
	f, err := parse(nil, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	if f.node != "node-1" || f.podUID != "uid-1" || f.gpus != "simulated" || f.http != ":8080" {
		t.Errorf("got %+v", f)
	}
}
