package picture

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

// generated is the end of a name that the API server or a controller has made
// up, which no two runs share.
var generated = regexp.MustCompile(`-[a-z0-9]{5}$`)

// identities gives each event a name that the same event of another run has too:
// its kind, and whose it is by the name that was given, with a number where a
// name was given again. Nodes and devices are not part of it, since a scheduler
// may choose others.
func identities(events []timeline.Event) []string {
	numbers := map[string]map[string]int{} // by given name: of each whole name
	number := func(name string) string {
		if name == "" {
			return ""
		}
		given := generated.ReplaceAllString(name, "")
		if numbers[given] == nil {
			numbers[given] = map[string]int{}
		}
		n, known := numbers[given][name]
		if !known {
			n = len(numbers[given]) + 1
			numbers[given][name] = n
		}
		return fmt.Sprintf("%s#%d", given, n)
	}
	all := make([]string, len(events))
	for i, e := range events {
		id := []string{string(e.Kind), number(e.Pod)}
		switch e.Kind {
		case timeline.PrepareStep, timeline.UnprepareStep, timeline.DriverStep:
			id = append(id, digits.ReplaceAllString(e.Detail, "0"))
		case timeline.PodHealth, timeline.DeviceHealth, timeline.DeviceTainted, timeline.DeviceUntaint,
			timeline.FaultAsked, timeline.FaultInjected, timeline.Warning, timeline.Measured:
			id = append(id, e.Detail)
		case timeline.Action, timeline.Remark:
			id = append(id, digits.ReplaceAllString(e.Text, "0"))
		}
		if e.Workload != nil {
			id = append(id, fmt.Sprint(e.Workload.Rank, e.Workload.Step))
		}
		all[i] = strings.Join(id, "|")
	}
	return all
}

var digits = regexp.MustCompile(`[0-9]+`)

// pair is the same event of two runs by its index in each, -1 where a run lacks
// it.
type pair struct{ a, b int }

// maxAligned bounds the events of a run that are compared one by one.
const maxAligned = 5000

// align pairs the events of two runs.
func align(a, b []timeline.Event) []pair {
	a, b = a[:min(len(a), maxAligned)], b[:min(len(b), maxAligned)]
	var pairs []pair
	matcher := difflib.NewMatcherWithJunk(identities(a), identities(b), false, nil)
	for _, op := range matcher.GetOpCodes() {
		if op.Tag == 'e' {
			for k := range op.I2 - op.I1 {
				pairs = append(pairs, pair{op.I1 + k, op.J1 + k})
			}
			continue
		}
		for i := op.I1; i < op.I2; i++ {
			pairs = append(pairs, pair{i, -1})
		}
		for j := op.J1; j < op.J2; j++ {
			pairs = append(pairs, pair{-1, j})
		}
	}
	return pairs
}
