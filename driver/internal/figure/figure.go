// Package figure tells in a test's output how something measured compares with
// its limit, in the words in which the scenarios do it: scripts/bench.sh makes a
// table of both.
package figure

import (
	"fmt"
	"os"
	"testing"
)

// EnvLimits is "report" when a time over its limit is told and fails nothing, as
// with scenarios that are not strict: limits of times are for a machine with
// nothing else to do. Other figures do not depend on that.
const EnvLimits = "DRA_LAB_LIMITS"

// AtMost tells of a figure, in this unit, and fails the test when it is over its
// limit.
func AtMost(tb testing.TB, what string, got, limit float64, unit string) {
	tb.Helper()
	verdict := "within"
	if got > limit {
		verdict = "MISSED"
	}
	// On one line of its own, without a position before it.
	fmt.Fprintf(tb.Output(), "measured: %s: %.3g %s (%s %.3g %s)\n", what, got, unit, verdict, limit, unit)
	told := (unit == "s" || unit == "ms") && os.Getenv(EnvLimits) == "report"
	if got > limit && !told {
		tb.Errorf("%s: %.3g %s, at most %.3g %s wanted", what, got, unit, limit, unit)
	}
}
