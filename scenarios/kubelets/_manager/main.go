// Program manager is the kubelet's half of a DRA plugin connection and nothing
// else of a kubelet: the DRA plugin manager of the Kubernetes version that it is
// compiled with. It does what package kubelets asks for on standard input, one
// JSON request per line, and answers on standard output, one JSON line each. Its
// log, on standard error, is the kubelet's.
//
// This folder is no part of the main module: package kubelets writes these files
// into a module of their own per version and builds them there. All versions get
// this file and manager.go, and one of the files named after versions.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
)

// request and answer are those of package kubelets (see manager.go there).
type request struct {
	Do       string        `json:"do"`
	Driver   string        `json:"driver"`
	Endpoint string        `json:"endpoint"`
	Services []string      `json:"services"`
	Rounds   int           `json:"rounds"`
	Claim    string        `json:"claim"`
	Within   time.Duration `json:"within"`
	Stacks   string        `json:"stacks"`
}

type answer struct {
	Error      string          `json:"error,omitempty"`
	Response   json.RawMessage `json:"response,omitempty"`
	Hung       bool            `json:"hung,omitempty"`
	Took       time.Duration   `json:"took,omitempty"`
	Goroutines int             `json:"goroutines,omitempty"`
	Loops      int             `json:"loops,omitempty"`
	Reports    int             `json:"reports,omitempty"`
	Stacks     []string        `json:"stacks,omitempty"`
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "manager: error: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	health := flags.Bool("health", false, "watch health")
	idle := flags.Duration("idle", 0, "time without a call after which gRPC disconnects; 0 is gRPC's default")
	klog.InitFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *health {
		// Off by default before 1.36.
		if err := utilfeature.DefaultMutableFeatureGate.Set("ResourceHealthStatus=true"); err != nil {
			return fmt.Errorf("set feature gate: %w", err)
		}
	}
	if *idle > 0 {
		disconnectWhenIdle(*idle)
	}
	m := newManager(*health)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		a := m.do(r)
		klog.Flush()
		if err := json.NewEncoder(out).Encode(a); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return lines.Err()
}
