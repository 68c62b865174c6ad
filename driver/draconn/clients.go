package draconn

import (
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// clients are the stubs of a connection. They are made once and then only read;
// what changes is one number per service, which says the version in use.
type clients struct {
	plugin versions[drav1.DRAPluginClient]
	health versions[healthv1.DRAResourceHealthClient]
	// registration has one version, whatever Kubernetes.
	registration registration.RegistrationClient
}

// newClients makes the stubs of every version that the plugin may have: all of
// them, or those of the given services if they are known.
func newClients(cc grpc.ClientConnInterface, services []string, known bool) clients {
	offered := func(service string) bool { return !known || slices.Contains(services, service) }
	c := clients{registration: registration.NewRegistrationClient(cc)}
	if offered(drav1.DRAPluginService) {
		c.plugin.add(drav1.DRAPluginService, drav1.NewDRAPluginClient(cc))
	}
	if offered(drav1beta1.DRAPluginService) {
		c.plugin.add(drav1beta1.DRAPluginService, drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(cc)})
	}
	if offered(healthv1.DRAResourceHealthService) {
		c.health.add(healthv1.DRAResourceHealthService, healthv1.NewDRAResourceHealthClient(cc))
	}
	if offered(healthv1alpha1.DRAResourceHealthService) {
		c.health.add(healthv1alpha1.DRAResourceHealthService, healthv1.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(cc)})
	}
	return c
}

// versions has the clients of one service, the newest version first, all behind
// the interface of the newest.
type versions[C any] struct {
	clients  []C
	services []string
	inUse    *atomic.Int32 // index; a pointer so that the struct may be copied while it is built
}

func (v *versions[C]) add(service string, client C) {
	if v.inUse == nil {
		v.inUse = new(atomic.Int32)
	}
	v.clients = append(v.clients, client)
	v.services = append(v.services, service)
}

// service names the version in use, "" if there is none.
func (v *versions[C]) service() string {
	if len(v.services) == 0 {
		return ""
	}
	return v.services[v.inUse.Load()]
}

// learn repeats a call that the tried version answered with Unimplemented with
// the other versions, until one of them answers anything else, and remembers
// that one. The tried version is not always the one in use: another call may
// have learned in the meantime. Nothing was done by a server that says
// Unimplemented, so repeating is safe. It returns ErrService beside the status
// if none of them answers.
func learn[C, R any](v *versions[C], tried int32, unimplemented error, call func(C) (R, error)) (R, error) {
	for i := range v.clients {
		if int32(i) == tried {
			continue
		}
		resp, err := call(v.clients[i])
		if isUnimplemented(err) {
			continue
		}
		v.inUse.Store(int32(i))
		return resp, err
	}
	var none R
	return none, &serviceError{status: unimplemented, services: v.services}
}

func isUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
func isUnavailable(err error) bool   { return status.Code(err) == codes.Unavailable }
