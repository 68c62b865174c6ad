package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
)

// collecting unprepares claims that are in the checkpoint and no longer in the
// API. The kubelet asks for that when a Pod ends, so this is for claims of which
// the kubelet has lost its record, or that were taken away by force: without it
// their devices would be held for ever.
//
// A claim has to be found gone in two rounds, so that a kubelet which is about
// to ask has its turn, and nothing may use its devices.
func (d *Driver) collecting(ctx context.Context) {
	ticker := time.NewTicker(d.cfg.CollectEvery)
	defer ticker.Stop()
	gone := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		found, err := d.goneClaims(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.background(ctx, "collect", err)
		}
		for uid, why := range found {
			if gone[uid] == "" {
				continue
			}
			if err := d.collect(ctx, uid, why); err != nil {
				if ctx.Err() != nil {
					return
				}
				d.background(ctx, "collect", fmt.Errorf("collect claim %s, %s: %w", uid, why, err))
			}
		}
		gone = found
	}
}

// goneClaims finds the claims of the checkpoint that the API server does not
// have, and says why. What it cannot ask for is not gone; the error tells of it.
func (d *Driver) goneClaims(ctx context.Context) (gone map[string]string, err error) {
	entries, err := d.store.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect claims: %w", err)
	}
	gone = map[string]string{}
	var errs []error
	for _, e := range entries {
		// No resource version: the answer is the API server's own, not that of
		// a cache which may be behind.
		c, err := d.cfg.Client.ResourceV1().ResourceClaims(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			gone[e.UID] = "the claim no longer exists"
		case err != nil:
			errs = append(errs, fmt.Errorf("look for claim %s/%s: %w", e.Namespace, e.Name, err))
			if ctx.Err() != nil {
				return gone, errors.Join(errs...)
			}
		case string(c.UID) != e.UID:
			gone[e.UID] = fmt.Sprintf("the name now belongs to claim %s", c.UID)
		}
	}
	return gone, errors.Join(errs...)
}

// collect unprepares a claim that is gone, unless its devices are in use: then
// a Pod still has them, and somebody else must not get them.
func (d *Driver) collect(ctx context.Context, uid, why string) error {
	entry, ok, err := d.store.Get(ctx, uid)
	if err != nil || !ok {
		return err
	}
	if users := d.users(entry); len(users) > 0 {
		return fmt.Errorf("not while it is used: %s", strings.Join(users, "; "))
	}
	name := types.NamespacedName{Namespace: entry.Namespace, Name: entry.Name}
	if err := d.unprepareClaim(ctx, kubeletplugin.NamespacedObject{UID: types.UID(uid), NamespacedName: name}); err != nil {
		return err
	}
	d.metrics.Collected.Inc()
	klog.FromContext(ctx).Info("Collected claim", "claim", name, "uid", uid, "why", why)
	d.report(api.Report{
		Step: api.StepCollected, ClaimUID: uid, ClaimNamespace: entry.Namespace, ClaimName: entry.Name,
		Device: strings.Join(entry.Names(), ","), Detail: why,
	})
	d.event(corev1.EventTypeWarning, reasonCollected, actionUnprepare,
		fmt.Sprintf("claim %s/%s (%s) with %s was still prepared: %s", entry.Namespace, entry.Name, uid, strings.Join(entry.Names(), ", "), why))
	return nil
}

// users says which devices of a claim have processes, as far as they tell: one
// that is lost or silent would hold the claim for ever. On a shared one they may
// be somebody else's: then the claim waits for those, too.
func (d *Driver) users(e checkpoint.Entry) []string {
	var users []string
	for _, dev := range e.Devices {
		gpu, ok := d.inventory().GPUs[dev.Name]
		if !ok || dev.Monitor {
			continue
		}
		usage, err := d.usage(gpu)
		if err == nil && len(usage.Processes) > 0 {
			users = append(users, inUse(dev.Name, usage))
		}
	}
	return users
}
