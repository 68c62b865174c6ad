package plugin_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/internal/plugin/idle"
)

const parallel = 12

func (m *machine) benchmarkClaims(b *testing.B) {
	m.inventory(b, parallel)
	for i := range parallel {
		m.allocate(b, claim(fmt.Sprint("c", i), api.DeviceName(i)))
	}
}

func (m *machine) idlePlugin(b *testing.B) *draconn.Conn {
	helper, err := idle.Start(b.Context(), idle.Config{
		Driver: api.DriverName, Node: nodeName, Client: m.client,
		PluginDir: m.pluginDir(), RegistrarDir: m.registrarDir(), OnError: func(err error) { b.Error(err) },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(helper.Stop)
	conn, err := draconn.Open(b.Context(), filepath.Join(m.pluginDir(), "dra.sock"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	if err := conn.WaitServing(b.Context()); err != nil {
		b.Fatal(err)
	}
	return conn
}

func one(b *testing.B, conn *draconn.Conn, name string, prepare bool) {
	claims := []*drav1.Claim{reference(name)}
	var err error
	if prepare {
		_, err = conn.Prepare(b.Context(), &drav1.NodePrepareResourcesRequest{Claims: claims})
	} else {
		_, err = conn.Unprepare(b.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: claims})
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkPrepare and BenchmarkUnprepare compare the driver with a plugin that
// does nothing, one claim after the other and twelve at once. The API server is
// in memory here: on a cluster each prepare takes the time of a GET more.
func BenchmarkPrepare(b *testing.B)   { benchmark(b, true) }
func BenchmarkUnprepare(b *testing.B) { benchmark(b, false) }

func benchmark(b *testing.B, prepare bool) {
	for _, who := range []string{"idle", "driver"} {
		for _, at := range []int{1, parallel} {
			b.Run(fmt.Sprintf("%s/claims=%d", who, at), func(b *testing.B) {
				m := newMachine(b)
				m.benchmarkClaims(b)
				var conn *draconn.Conn
				if who == "idle" {
					conn = m.idlePlugin(b)
				} else {
					m.start(b, nil)
					conn = m.register(b, "").Conn
				}
				all := func(prepare bool) {
					var wg sync.WaitGroup
					for i := range at {
						wg.Go(func() { one(b, conn, fmt.Sprint("c", i), prepare) })
					}
					wg.Wait()
				}
				for b.Loop() {
					if !prepare {
						b.StopTimer()
						all(true)
						b.StartTimer()
						all(false)
						continue
					}
					all(true)
					b.StopTimer()
					all(false)
					b.StartTimer()
				}
			})
		}
	}
}
