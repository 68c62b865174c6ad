package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimChange says what it means that a claim was old and is now. old is nil
// for a new claim, now is nil for one that is gone.
func claimChange(old, now *resourcev1.ResourceClaim, at time.Time) []Event {
	if now == nil {
		return []Event{{
			Time: at, Source: SourceWatch, Component: APIServer, Kind: ClaimGone, Pod: claimOwner(old), Claim: old.Name,
			Text: fmt.Sprintf("claim %s is gone", old.Name),
		}}
	}
	c := claimDiff{now: now, at: at}
	if old == nil {
		c.created()
		old = &resourcev1.ResourceClaim{}
	}
	c.allocation(old)
	c.conditions(old)
	c.reservation(old)
	return c.events
}

type claimDiff struct {
	now    *resourcev1.ResourceClaim
	at     time.Time
	events []Event
}

func (c *claimDiff) add(e Event, format string, args ...any) {
	e.Time, e.Source, e.Claim = c.at, SourceWatch, c.now.Name
	if e.Pod == "" {
		e.Pod = claimOwner(c.now)
	}
	e.Text = "claim " + c.now.Name + ": " + fmt.Sprintf(format, args...)
	c.events = append(c.events, e)
}

func (c *claimDiff) created() {
	owner := metav1.GetControllerOf(c.now)
	if owner != nil && c.now.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" {
		c.add(Event{Component: Scheduler, Kind: ClaimCreated}, "created for the resource names of %s %s", owner.Kind, owner.Name)
		return
	}
	if owner != nil {
		c.add(Event{Component: ControllerManager, Kind: ClaimCreated}, "created from the template for %s %s", owner.Kind, owner.Name)
		return
	}
	c.add(Event{Component: User, Kind: ClaimCreated}, "created")
}

func (c *claimDiff) allocation(old *resourcev1.ResourceClaim) {
	before, after := old.Status.Allocation, c.now.Status.Allocation
	switch {
	case before == nil && after != nil:
		for _, result := range after.Devices.Results {
			c.add(Event{Component: Scheduler, Kind: ClaimAllocated, Node: cmp.Or(chosenNode(after), result.Pool), Device: result.Device, Detail: result.Request},
				"allocated %s of %s", result.Device, result.Pool)
		}
	case before != nil && after == nil:
		c.add(Event{Component: ControllerManager, Kind: ClaimDeallocated, Node: claimNode(old)}, "deallocated")
	}
}

// conditions are those of devices, which their driver's controller writes.
func (c *claimDiff) conditions(old *resourcev1.ResourceClaim) {
	before := map[string]metav1.Condition{}
	for _, d := range old.Status.Devices {
		for _, known := range d.Conditions {
			before[d.Driver+"/"+d.Pool+"/"+d.Device+"/"+known.Type] = known
		}
	}
	for _, d := range c.now.Status.Devices {
		for _, now := range d.Conditions {
			if before[d.Driver+"/"+d.Pool+"/"+d.Device+"/"+now.Type].Status == now.Status {
				continue
			}
			c.add(Event{Component: Controller, Kind: ClaimCondition, Node: claimNode(c.now), Device: d.Device, Detail: now.Type + "=" + string(now.Status)},
				"condition of %s: %s is %s: %s", d.Device, now.Type, now.Status, now.Message)
		}
	}
}

func (c *claimDiff) reservation(old *resourcev1.ResourceClaim) {
	for _, consumer := range c.now.Status.ReservedFor {
		if !isReservedFor(old, consumer) {
			c.add(Event{Component: Scheduler, Kind: ClaimReserved, Node: claimNode(c.now), Pod: consumer.Name}, "reserved for %s", consumerText(consumer))
		}
	}
	for _, consumer := range old.Status.ReservedFor {
		if !isReservedFor(c.now, consumer) {
			c.add(Event{Component: ControllerManager, Kind: ClaimUnreserved, Node: claimNode(old), Pod: consumer.Name}, "no longer reserved for %s", consumerText(consumer))
		}
	}
}

func isReservedFor(claim *resourcev1.ResourceClaim, consumer resourcev1.ResourceClaimConsumerReference) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(c resourcev1.ResourceClaimConsumerReference) bool { return c.UID == consumer.UID })
}

// claimOwner is the Pod that a claim was made for.
func claimOwner(claim *resourcev1.ResourceClaim) string {
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return owner.Name
	}
	return ""
}

// claimNode is the node of the claim's first device, "" without an allocation.
// The pools of nodes are named after them.
func claimNode(claim *resourcev1.ResourceClaim) string {
	a := claim.Status.Allocation
	if a == nil || len(a.Devices.Results) == 0 {
		return ""
	}
	return cmp.Or(chosenNode(a), a.Devices.Results[0].Pool)
}

// chosenNode is the one node at which an allocation can be used, "" if there may
// be others.
func chosenNode(a *resourcev1.AllocationResult) string {
	if a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, f := range a.NodeSelector.NodeSelectorTerms[0].MatchFields {
		if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}

func consumerText(c resourcev1.ResourceClaimConsumerReference) string {
	if c.Resource == "pods" {
		return "Pod " + c.Name
	}
	return c.Resource + " " + c.Name
}
