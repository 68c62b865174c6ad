package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestWrongCommandLinesAreRefused(t *testing.T) {
	t.Setenv("POD_NAME", "")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no identity":      {nil, exitUsage, "no identity"},
		"an argument":      {[]string{"-identity=a", "b"}, exitUsage, `unexpected argument "b"`},
		"an unknown flag":  {[]string{"-nonsense"}, exitUsage, "-nonsense"},
		"no such file":     {[]string{"-identity=a", "-kubeconfig=/nowhere"}, exitFailed, "/nowhere"},
		"help":             {[]string{"-help"}, exitDone, "-fabric-devices"},
		"too many devices": {[]string{"-identity=a", "-fabric-devices=x"}, exitUsage, "-fabric-devices"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(t.Context(), c.args, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("stderr %q, want %q in it", stderr.String(), c.want)
			}
		})
	}
}
