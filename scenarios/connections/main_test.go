package connections

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// raceSubject makes the test binary do what racecheck does, so that a test
// binary built with -race can watch itself.
const raceSubject = "CONNECTIONS_TEST_FIRST_USE"

func TestMain(m *testing.M) {
	if os.Getenv(raceSubject) != "" {
		if err := FirstUse(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
