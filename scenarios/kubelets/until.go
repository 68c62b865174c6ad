package kubelets

import (
	"context"
	"fmt"
	"regexp"
	"time"
)

// until asks again and again until the answer is yes, an error, or ctx ends.
func until(ctx context.Context, what string, ask func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
}

var onMutex = regexp.MustCompile(`^goroutine \d+ \[(sync\.|semacquire)`)

// stuck says that a goroutine's stack begins with waiting for a mutex.
func stuck(stack string) bool { return onMutex.MatchString(stack) }
