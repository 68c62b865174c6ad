// Command racecheck uses a plugin client for the first time from many
// goroutines: the lazy model or the eager connection, as its arguments say.
// Built with -race, it is how the connection laboratory shows what the race
// detector says about either.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dra-lab/dra-lab/scenarios/connections"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := connections.FirstUse(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "racecheck:", err)
		os.Exit(1)
	}
}
