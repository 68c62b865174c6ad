package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Words of ParseXIDs and ParseEffects.
const (
	wordDefault = "default"
	wordNone    = "none"
)

// maxXID bounds what is taken for an XID; those known have three digits.
const maxXID = 9999

// ParseXIDs reads Rules.IgnoredXIDs as a user writes them: numbers with commas
// between, "none", or "default". Each number may be there once.
func ParseXIDs(s string) ([]uint64, error) {
	switch s {
	case wordDefault:
		return applicationXIDs(), nil
	case wordNone:
		return []uint64{}, nil
	}
	var xids []uint64
	for part := range strings.SplitSeq(s, ",") {
		xid, err := strconv.ParseUint(part, 10, 64)
		if err != nil || xid < 1 || xid > maxXID || slices.Contains(xids, xid) {
			return nil, fmt.Errorf("XIDs %q: %q, want each number from 1 to %d once, %s or %s", s, part, maxXID, wordNone, wordDefault)
		}
		xids = append(xids, xid)
	}
	return xids, nil
}

// ParseEffects reads Rules.Effects as a user writes them: CONDITION=EFFECT with
// commas between, for conditions that are to have another effect than that of
// DefaultRules, or "default". Each condition may be there once.
func ParseEffects(s string) (map[Condition]Effect, error) {
	effects := map[Condition]Effect{}
	if s == wordDefault {
		return effects, nil
	}
	known := slices.Sorted(maps.Keys(DefaultRules().Effects))
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(part, "=")
		condition, effect := Condition(name), Effect(value)
		_, again := effects[condition]
		switch {
		case again:
			return nil, fmt.Errorf("taint effects %q: %q is there twice", s, name)
		case !slices.Contains(known, condition):
			return nil, fmt.Errorf("taint effects %q: condition %q, want one of %v", s, name, known)
		case !slices.Contains([]Effect{NoTaint, NoSchedule, NoExecute}, effect):
			return nil, fmt.Errorf("taint effects %q: effect %q of %s, want %s, %s or %s", s, value, name, NoTaint, NoSchedule, NoExecute)
		}
		effects[condition] = effect
	}
	return effects, nil
}
