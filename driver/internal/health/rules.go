// Package health decides how each GPU is, and tells whoever asks.
//
// Two things are known of a GPU: what it reports by itself (events) and what it
// answers when asked (readings). [Machine] turns both into a [Status] and is
// pure; [Monitor] asks, listens and tells.
//
// An event can only make a GPU worse. It gets better only when it was asked
// afterwards and said that it needs no recovery: a harmless event after a fatal
// one heals nothing. What a GPU declines to answer counts neither way, except
// that a temperature or a PCIe width which it no longer tells is not held
// against it. Silence alone makes a GPU unknown, never unhealthy.
package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// Condition is a kind of thing that can be wrong.
type Condition string

// All conditions.
const (
	XID         Condition = "xid"
	ECC         Condition = "ecc"
	Lost        Condition = "gpu-lost"
	Recovery    Condition = "recovery" // the GPU wants to be recovered, and nothing says what happened
	Temperature Condition = "temperature"
	Power       Condition = "power"
	Fabric      Condition = "fabric"
	PCIeWidth   Condition = "pcie-width"
	// Unreadable is a GPU that cannot be given to claims because what it is could
	// not be read. That says nothing about how it is: it is unknown.
	Unreadable Condition = "unreadable"
	// Leaked is a GPU on which something of a claim stayed behind. It is found at
	// unprepare, not by a Machine.
	Leaked Condition = "leaked"
	// PCIeGeneration is known only while the GPU works, and no longer held
	// against it when it does not.
	PCIeGeneration Condition = "pcie-generation"
)

// Effect is what a taint does to Pods.
type Effect string

// The effects that every served Kubernetes version knows.
const (
	NoSchedule Effect = "NoSchedule" // no new Pods
	NoExecute  Effect = "NoExecute"  // and those that run are evicted
	// NoTaint is no taint at all: health stream, metrics and Events have to do.
	NoTaint Effect = "None"
)

// Taint marks a device in its ResourceSlice.
type Taint struct {
	Key    string
	Value  string
	Effect Effect
	Since  time.Time
}

// String has the form key=value:effect.
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + string(t.Effect) }

// Rules are the limits and reactions. The zero value of a field means the
// default in DefaultRules.
type Rules struct {
	// IgnoredXIDs are those that say nothing about the GPU; every other is fatal.
	// An empty list that is not nil ignores none.
	IgnoredXIDs []uint64
	// Settle is how long after a fatal event an answer that all is well is not
	// yet believed.
	Settle time.Duration
	// TemperatureHysteresis is how far below its limit, in degrees Celsius, a
	// hot GPU has to cool.
	TemperatureHysteresis int
	// Confirm is how many readings in a row have to find a narrow or slow PCIe
	// link, or the GPU slowed down by its power supply.
	Confirm int
	// Quiet is how soon after its end a problem has to come back to count as
	// flapping, and how long it has to stay away then to be over.
	Quiet time.Duration
	// Effects are those of the taints by condition.
	Effects map[Condition]Effect
}

// DefaultRules are: the vendor's list of ignored XIDs, 2 s, 5 degrees, 2
// readings, 15 s; conditions that end a running program evict, the others only keep
// new Pods away.
func DefaultRules() Rules {
	return Rules{
		IgnoredXIDs:           applicationXIDs(),
		Settle:                2 * time.Second,
		TemperatureHysteresis: 5,
		Confirm:               2,
		Quiet:                 15 * time.Second,
		Effects: map[Condition]Effect{
			XID: NoExecute, ECC: NoExecute, Lost: NoExecute, Recovery: NoExecute,
			Temperature: NoSchedule, PCIeWidth: NoSchedule, PCIeGeneration: NoSchedule,
			Power: NoSchedule, Fabric: NoSchedule, Unreadable: NoSchedule, Leaked: NoSchedule,
		},
	}
}

func (r Rules) withDefaults() Rules {
	d := DefaultRules()
	if r.IgnoredXIDs == nil {
		r.IgnoredXIDs = d.IgnoredXIDs
	}
	if r.Settle == 0 {
		r.Settle = d.Settle
	}
	if r.TemperatureHysteresis == 0 {
		r.TemperatureHysteresis = d.TemperatureHysteresis
	}
	if r.Confirm == 0 {
		r.Confirm = d.Confirm
	}
	if r.Quiet == 0 {
		r.Quiet = d.Quiet
	}
	maps.Copy(d.Effects, r.Effects)
	r.Effects = d.Effects
	return r
}

// Problem is one thing that is wrong with a GPU.
type Problem struct {
	Condition Condition `json:"condition"`
	Value     string    `json:"value"` // short, for a taint: "79"
	Message   string    `json:"message"`
	Since     time.Time `json:"since"`
}

// Status is how a GPU is.
type Status struct {
	Index    int
	Name     string
	Health   string    // api.HealthHealthy, HealthUnhealthy, HealthUnknown
	Message  string    // empty when healthy
	Problems []Problem // by condition
	// Verified is when the GPU was last asked, or last reported by itself. The
	// zero time means never.
	Verified time.Time
	Reading  device.Reading // the last one
}

// Same says whether a watcher who knows one status learns nothing from the
// other.
func (s Status) Same(other Status) bool {
	return s.Health == other.Health && s.Message == other.Message && slices.Equal(s.Problems, other.Problems)
}

// Machine keeps what is known of one GPU.
type Machine struct {
	rules Rules
	gpu   device.GPU

	// latched are problems that an event brought, or that persisted over a
	// restart of the driver; only a reading after lastFatal+Settle ends them.
	latched   map[Condition]Problem
	lastFatal time.Time
	// level are problems that the last reading showed.
	level map[Condition]Problem

	// held are problems that are over and come back too often; see damper.
	held   []Problem
	damper damper
	// silent is since when the GPU owes an answer; zero when it does not.
	silent time.Time

	reading  device.Reading
	verified time.Time
	streaks  map[Condition]int    // bad readings in a row
	ecc      device.Value[uint64] // errors when they were last told
	// recovery and remapFailed are what the GPU said when it last told.
	recovery    device.RecoveryAction
	remapFailed bool
}

// NewMachine begins with nothing known.
func NewMachine(rules Rules, gpu device.GPU) *Machine {
	rules = rules.withDefaults()
	return &Machine{
		rules:   rules,
		gpu:     gpu,
		latched: map[Condition]Problem{},
		level:   map[Condition]Problem{},
		streaks: map[Condition]int{},
		damper:  damper{quiet: rules.Quiet, seen: map[Condition]episode{}},
	}
}

// Latch takes over a problem that was known before the driver restarted.
func (m *Machine) Latch(p Problem) {
	m.latched[p.Condition] = p
	m.lastFatal = p.Since
}

// Latched are the problems worth remembering over a restart, by condition.
func (m *Machine) Latched() []Problem { return byCondition(m.latched) }

// Event takes in what the GPU reported, and says whether it was fatal.
func (m *Machine) Event(e device.Event, now time.Time) (fatal bool) {
	var p Problem
	switch e.Kind {
	case device.EventXID:
		if slices.Contains(m.rules.IgnoredXIDs, e.Code) {
			return false
		}
		p = Problem{Condition: XID, Value: strconv.FormatUint(e.Code, 10), Message: describeXID(e.Code)}
	case device.EventECCDouble:
		p = Problem{Condition: ECC, Value: "uncorrectable", Message: "uncorrectable ECC error"}
	default:
		// Everything else is a reason to ask the GPU, not a verdict.
		return false
	}
	p.Since = now
	// The first one stays: it is the cause, those that follow are usually its
	// consequences.
	if _, ok := m.latched[p.Condition]; !ok {
		m.latched[p.Condition] = p
	}
	m.lastFatal = now
	m.verified = now
	m.damp(now)
	return true
}

// Settled is when an answer that all is well may be believed; zero if nothing
// waits for it.
func (m *Machine) Settled() time.Time {
	if len(m.latched) == 0 {
		return m.damper.settled()
	}
	return m.lastFatal.Add(m.rules.Settle)
}

// Silent says that the GPU owes an answer to a question of that time: nobody
// knows how it is until it answers.
func (m *Machine) Silent(since time.Time) { m.silent = since }

// Repaired is told that somebody has repaired the GPU.
func (m *Machine) Repaired(now time.Time) {
	m.damper.repair()
	m.damp(now)
}

// damp finds out what comes and goes.
func (m *Machine) damp(now time.Time) {
	m.held = m.damper.observe(slices.Concat(byCondition(m.latched), byCondition(m.level)), now)
	for _, problems := range []map[Condition]Problem{m.latched, m.level} {
		for c, p := range problems {
			problems[c] = m.damper.told(p)
		}
	}
}

// Read takes in a reading. asked is when the question was put, now when it had
// been answered: an event in between is not undone by the answer.
func (m *Machine) Read(r device.Reading, asked, now time.Time) {
	m.reading = r
	m.verified = now
	m.silent = time.Time{}
	m.readLost(r, now)
	m.readECC(r, now)
	m.readRecovery(r, asked, now)
	m.readTemperature(r, now)
	m.readPCIe(r, now)
	m.set(Unreadable, r.Problem != "", now, api.UnreadableInventory, "the GPU could not be read: "+r.Problem)
	m.confirm(Power, r.PowerBraked.V, now, "brake", "the power supply slows the GPU down")
	m.set(Fabric, r.FabricError.V != "", now, "fabric", "not in the NVLink fabric: "+r.FabricError.V)
	m.damp(now)
}

func (m *Machine) readLost(r device.Reading, now time.Time) {
	m.set(Lost, r.Lost, now, "lost", "GPU is lost: "+r.Detail)
}

func (m *Machine) readECC(r device.Reading, now time.Time) {
	if !r.UncorrectedECC.Known {
		return
	}
	// The count at the first reading is history, what is added is news.
	if m.ecc.Known && r.UncorrectedECC.V > m.ecc.V {
		m.Event(device.Event{Index: m.gpu.Index, Kind: device.EventECCDouble}, now)
	}
	m.ecc = r.UncorrectedECC
}

func (m *Machine) readRecovery(r device.Reading, asked, now time.Time) {
	if r.RemapFailed.Known {
		m.remapFailed = r.RemapFailed.V
	}
	if r.Recovery.Known {
		m.recovery = r.Recovery.V
	}
	wants := m.remapFailed || m.recovery != device.RecoveryNone
	if !wants && r.Recovery.Known && !r.Lost && len(m.latched) > 0 && !asked.Before(m.Settled()) {
		clear(m.latched)
	}
	value, message := "row-remap", "a memory row could not be remapped"
	if !m.remapFailed {
		value = strings.ReplaceAll(strings.ToLower(m.recovery.String()), " ", "-")
		message = "recovery needed: " + m.recovery.String()
	}
	// With a cause known, that is the problem; the need to recover follows.
	m.set(Recovery, wants && len(m.latched) == 0, now, value, message)
}

func (m *Machine) readTemperature(r device.Reading, now time.Time) {
	if !r.Temperature.Known || !r.TemperatureLimit.Known {
		delete(m.level, Temperature)
		return
	}
	limit := r.TemperatureLimit.V
	if _, hot := m.level[Temperature]; hot {
		limit -= m.rules.TemperatureHysteresis
	}
	m.set(Temperature, r.Temperature.V >= limit, now, "hot",
		fmt.Sprintf("temperature is at its limit of %d degrees Celsius", r.TemperatureLimit.V))
}

func (m *Machine) readPCIe(r device.Reading, now time.Time) {
	m.confirm(PCIeWidth, r.PCIeWidth.Known && r.PCIeWidthMax.Known && r.PCIeWidth.V < r.PCIeWidthMax.V, now,
		fmt.Sprintf("x%d", r.PCIeWidth.V), fmt.Sprintf("PCIe link has %d of %d lanes", r.PCIeWidth.V, r.PCIeWidthMax.V))
	m.confirm(PCIeGeneration, r.PCIeGeneration.Known && r.PCIeGenerationMax.Known && r.PCIeGeneration.V < r.PCIeGenerationMax.V, now,
		fmt.Sprintf("gen%d", r.PCIeGeneration.V), fmt.Sprintf("PCIe link has generation %d of %d under load", r.PCIeGeneration.V, r.PCIeGenerationMax.V))
}

// confirm is set for what several readings in a row have to say.
func (m *Machine) confirm(c Condition, bad bool, now time.Time, value, message string) {
	if !bad {
		m.streaks[c] = 0
	} else {
		m.streaks[c] = min(m.streaks[c]+1, m.rules.Confirm)
	}
	m.set(c, m.streaks[c] >= m.rules.Confirm, now, value, message)
}

// set makes a level problem true or false, and keeps the time of one that
// stays.
func (m *Machine) set(c Condition, bad bool, now time.Time, value, message string) {
	if !bad {
		delete(m.level, c)
		return
	}
	p := Problem{Condition: c, Value: value, Message: message, Since: now}
	if old, ok := m.level[c]; ok {
		p.Since = old.Since
	}
	m.level[c] = p
}

// Status is the verdict on what is known.
func (m *Machine) Status() Status {
	s := Status{
		Index: m.gpu.Index, Name: m.gpu.Name,
		Verified: m.verified, Reading: m.reading,
		Problems: slices.Concat(byCondition(m.latched), byCondition(m.level), m.held),
	}
	unreadable := slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Condition == Unreadable })
	switch {
	case len(s.Problems) > 0:
		s.Health = api.HealthUnhealthy
		if unreadable && len(s.Problems) == 1 {
			s.Health = api.HealthUnknown
		}
		messages := make([]string, 0, len(s.Problems))
		for _, p := range s.Problems {
			messages = append(messages, p.Message)
		}
		s.Message = strings.Join(messages, "; ")
	case !m.silent.IsZero():
		s.Health, s.Message = api.HealthUnknown, "the GPU has not answered since "+m.silent.UTC().Format(time.TimeOnly)
	case m.verified.IsZero():
		s.Health, s.Message = api.HealthUnknown, "not asked yet"
	case !m.reading.Answered():
		s.Health, s.Message = api.HealthUnknown, "the GPU answers no question"
		if m.reading.Detail != "" {
			s.Message += ": " + m.reading.Detail
		}
	default:
		s.Health = api.HealthHealthy
	}
	return s
}

// Taints are those that the status calls for under the rules, by key.
func (r Rules) Taints(s Status) []Taint {
	r = r.withDefaults()
	var taints []Taint
	for _, p := range s.Problems {
		if r.Effects[p.Condition] == NoTaint {
			continue
		}
		t := Taint{Key: taintKey(p.Condition), Value: p.Value, Effect: r.Effects[p.Condition], Since: p.Since}
		i := slices.IndexFunc(taints, func(have Taint) bool { return have.Key == t.Key && have.Effect == t.Effect })
		if i < 0 {
			taints = append(taints, t)
		}
	}
	slices.SortFunc(taints, func(a, b Taint) int { return strings.Compare(a.Key+string(a.Effect), b.Key+string(b.Effect)) })
	return taints
}

func taintKey(c Condition) string {
	switch c {
	case XID:
		return api.TaintXID
	case ECC:
		return api.TaintECC
	case Lost:
		return api.TaintLost
	case Recovery:
		return api.TaintRecovery
	case Unreadable:
		return api.TaintUnreadable
	}
	return api.TaintTelemetry
}

func byCondition(problems map[Condition]Problem) []Problem {
	list := make([]Problem, 0, len(problems))
	for _, p := range problems {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Problem) int { return strings.Compare(string(a.Condition), string(b.Condition)) })
	return list
}
