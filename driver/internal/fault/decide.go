// Package fault breaks the driver itself, for labs: a prepare that fails or
// hangs, a health stream that stalls, a disk that is full, a process that dies
// between two steps. What is to break is written by somebody else into a file
// beside the simulated hardware, see package api; there is none of this where
// the hardware is real.
//
// [Decide] says what a fault does, and is pure. [Faults] reads the file and does
// it, at the few places of the driver that ask. Without a file a place costs one
// look for it; a driver without simulated hardware has a nil [Faults], which
// costs nothing.
package fault

import (
	"fmt"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Place is where the driver asks whether something is to go wrong. The values of
// api.KillSteps are places, too.
type Place string

// The other places.
const (
	Prepare      Place = "prepare"      // before anything is done for a claim
	Unprepare    Place = "unprepare"    // likewise
	Registration Place = "registration" // the kubelet asks who is there
	HealthStream Place = "health-stream"
	Checkpoint   Place = "checkpoint" // before it is written
	CDI          Place = "cdi"        // before a spec is written
	API          Place = "api"        // before the API server is called
)

// Act is what happens at a place.
type Act int

// All acts.
const (
	Nothing Act = iota
	Fail        // it fails with Decision.Err
	Hang        // it waits until the fault is over
	Slow        // it waits for Decision.Delay, or until the fault is over
	Kill        // the process dies at once
)

// Decision is what a fault does at a place. The zero value is nothing.
type Decision struct {
	Act   Act
	Fault api.Fault
	Delay time.Duration // for Slow
	Err   error         // for Fail
}

// Decide says what faults do at a place: what the first of them does that acts
// there, and has not done it as often as it should. done says how often a fault
// has acted before.
func Decide(faults []api.Fault, place Place, done func(api.Fault) int, now time.Time) Decision {
	for _, f := range faults {
		d := effect(f, place)
		if d.Act == Nothing || !f.On(now) || f.Times > 0 && done(f) >= f.Times {
			continue
		}
		return d
	}
	return Decision{}
}

// effect is what a fault does at a place.
func effect(f api.Fault, place Place) Decision {
	fails := func(at Place, cause error) Decision {
		if at != place {
			return Decision{}
		}
		err := fmt.Errorf("injected fault %s", f.Kind)
		if cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return Decision{Act: Fail, Fault: f, Err: err}
	}
	waits := func(at Place, act Act) Decision {
		if at != place {
			return Decision{}
		}
		return Decision{Act: act, Fault: f, Delay: time.Duration(f.Code) * time.Second}
	}
	switch f.Kind {
	case api.FaultPrepareFails:
		return fails(Prepare, nil)
	case api.FaultPrepareHangs:
		return waits(Prepare, Hang)
	case api.FaultPrepareSlow:
		return waits(Prepare, Slow)
	case api.FaultUnprepareFails:
		return fails(Unprepare, nil)
	case api.FaultUnprepareHangs:
		return waits(Unprepare, Hang)
	case api.FaultUnprepareSlow:
		return waits(Unprepare, Slow)
	case api.FaultRegistrationFails:
		return fails(Registration, nil)
	case api.FaultHealthBreaks:
		return fails(HealthStream, nil)
	case api.FaultCheckpointFull:
		return fails(Checkpoint, syscall.ENOSPC)
	case api.FaultCDIFull:
		return fails(CDI, syscall.ENOSPC)
	case api.FaultAPIUnreachable:
		return fails(API, syscall.EHOSTUNREACH)
	case api.FaultDriverKill:
		return waits(Place(f.Step), Kill)
	}
	return Decision{}
}
