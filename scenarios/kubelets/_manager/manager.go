package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin"
)

type manager struct {
	plugins *plugin.DRAPluginManager
	handler *handler
}

// newManager makes a manager that wipes no ResourceSlices: there are none.
func newManager(health bool) *manager {
	m := &manager{handler: &handler{}}
	var streams plugin.StreamHandler
	if health {
		streams = m.handler
	}
	m.plugins = plugin.NewDRAPluginManager(context.Background(), nil, nil, streams, 0)
	return m
}

func (m *manager) do(r request) answer {
	start := time.Now()
	a := answer{}
	var err error
	switch r.Do {
	case "register":
		err = m.register(r)
	case "deregister":
		m.deregister(r)
	case "churn":
		for range r.Rounds {
			if err = m.register(r); err != nil {
				break
			}
			m.deregister(r)
		}
	case "prepare":
		a, err = m.prepare(r)
	case "state":
		a = m.state(r)
	default:
		err = fmt.Errorf("unknown request %q", r.Do)
	}
	a.Took = time.Since(start)
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// prepare calls the driver through the manager. Deadlocked, the call does not
// even heed its own timeout: then it is left alone after twice that.
func (m *manager) prepare(r request) (answer, error) {
	type result struct {
		response *drav1.NodePrepareResourcesResponse
		err      error
	}
	done := make(chan result, 1)
	go func() {
		p, err := m.plugins.GetPlugin(r.Driver)
		if err != nil {
			done <- result{nil, err}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), r.Within)
		defer cancel()
		// By way of JSON: 1.35 renamed the fields in Go.
		req := &drav1.NodePrepareResourcesRequest{}
		claim := fmt.Sprintf(`{"claims":[{"namespace":"default","name":%q,"uid":%q}]}`, r.Claim, r.Claim)
		if err := json.Unmarshal([]byte(claim), req); err != nil {
			done <- result{nil, err}
			return
		}
		response, err := p.NodePrepareResources(ctx, req)
		done <- result{response, err}
	}()
	select {
	case got := <-done:
		if got.err != nil {
			return answer{}, got.err
		}
		response, err := json.Marshal(got.response)
		return answer{Response: response}, err
	case <-time.After(2 * r.Within):
		return answer{Hung: true}, nil
	}
}

// state counts goroutines, and among them those that keep a health stream
// open: RegisterPlugin starts one each.
func (m *manager) state(r request) answer {
	a := answer{Goroutines: runtime.NumGoroutine(), Reports: int(m.handler.reports.Load())}
	var dump bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&dump, 2) // a buffer takes everything
	for _, stack := range strings.Split(dump.String(), "\n\n") {
		if strings.Contains(stack, "(*DRAPluginManager).add.func") {
			a.Loops++
		}
		if r.Stacks != "" && strings.Contains(stack, r.Stacks) {
			a.Stacks = append(a.Stacks, stack)
		}
	}
	return a
}

// handler reads health streams until they end, as the kubelet's does.
type handler struct{ reports atomic.Int64 }

func (h *handler) read(recv func() error) error {
	for {
		if err := recv(); err != nil {
			return err
		}
		h.reports.Add(1)
	}
}

// The kubelet leaves gRPC's idle timeout at 30 minutes, and only some versions
// let a test of the package itself change that. gRPC's own hook for options of
// all connections works with every one of them, with nothing of them changed.
//
//go:linkname addGlobalDialOptions google.golang.org/grpc/internal.AddGlobalDialOptions
var addGlobalDialOptions any // func(...grpc.DialOption)

func disconnectWhenIdle(after time.Duration) {
	addGlobalDialOptions.(func(...grpc.DialOption))(grpc.WithIdleTimeout(after))
}
