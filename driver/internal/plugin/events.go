package plugin

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Reasons of the Events on the Node object.
const (
	reasonUnhealthy = "GPUUnhealthy"
	reasonHealthy   = "GPUHealthy"
	reasonUnknown   = "GPUHealthUnknown"
	reasonLeaked    = "GPULeaked"
	reasonCollected = "ClaimCollected"
)

// Actions of the Events: what the driver did when it found the reason.
const (
	actionCheck     = "CheckHealth"
	actionUnprepare = "UnprepareClaim"
)

// event tells whoever looks at the node.
func (d *Driver) event(kind, reason, action, note string) {
	if d.cfg.Events == nil {
		return
	}
	// The kubelet's Events have the name for a UID, too, and tools look for it.
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: d.cfg.Node, UID: types.UID(d.cfg.Node)},
	}
	d.cfg.Events.Eventf(node, nil, kind, reason, action, "%s", note)
}

// healthEvent is the event for a change of health.
func (d *Driver) healthEvent(device, health, message string) {
	switch health {
	case api.HealthHealthy:
		d.event(corev1.EventTypeNormal, reasonHealthy, actionCheck, device+" is healthy again")
	case api.HealthUnhealthy:
		d.event(corev1.EventTypeWarning, reasonUnhealthy, actionCheck, device+": "+message)
	default:
		d.event(corev1.EventTypeWarning, reasonUnknown, actionCheck, device+": "+message)
	}
}
