package gates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Choice is a gate that the lab sets, and why.
type Choice struct {
	Name string
	On   bool
	Why  string
}

// A Conflict is a setting that would keep components from starting.
type Conflict struct {
	Gate    string // what the user set
	Version string // minor version that refuses it
	Problem string
	Cure    string
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("set feature gate %q on Kubernetes %s: %s", c.Gate, c.Version, c.Problem)
}

// Wanted returns the gates that the lab wants on: those of dynamic resource
// allocation that are beta or GA in this version, and those that put the health
// of a device into a Pod's status, whatever their stage.
func (t *Table) Wanted() []string {
	var wanted []string
	for _, name := range t.names {
		g := t.gates[name]
		mature := g.Stage == Beta || g.Stage == GA
		switch {
		case strings.HasPrefix(name, "ResourceHealthStatus"),
			mature && strings.HasPrefix(name, "DRA"),
			mature && name == "DynamicResourceAllocation",
			mature && strings.HasPrefix(name, "KubeletPodResourcesDynamicResources"):
			wanted = append(wanted, name)
		}
	}
	return wanted
}

// Check reports the first setting of a user that components of this version
// would not start with: an unknown name, a locked gate set against its lock, or
// two settings that contradict each other. The error is a *Conflict.
func (t *Table) Check(user Set) error {
	for _, name := range sortedNames(user) {
		if !t.Knows(name) {
			cure := "remove it, or use a Kubernetes version that has it"
			if near := t.Nearest(name); near != "" {
				cure = fmt.Sprintf("did you mean %q? Otherwise remove it, or use a Kubernetes version that has it", near)
			}
			return &Conflict{Gate: name, Version: t.minor, Problem: "there is no such gate in this version", Cure: cure}
		}
		if g := t.gates[name]; g.Locked && user[name] != g.Default {
			return &Conflict{
				Gate: name, Version: t.minor,
				Problem: fmt.Sprintf("this version has it locked to %t", g.Default),
				Cure:    "remove it",
			}
		}
	}
	return t.checkRequirements(user)
}

// checkRequirements reports gates that a user turned on although he turned off
// what they require, or turned off although a locked gate requires them.
func (t *Table) checkRequirements(user Set) error {
	for _, g := range t.All() {
		on, set := user[g.Name]
		if set && !on || !set && !g.Locked {
			continue
		}
		for _, required := range g.Requires {
			requiredOn, requiredSet := user[required]
			if !requiredSet || requiredOn || !t.On(user, g.Name) {
				continue
			}
			if set {
				return &Conflict{
					Gate: g.Name, Version: t.minor,
					Problem: fmt.Sprintf("it needs %s, which is set to false", required),
					Cure:    fmt.Sprintf("set %s to true, or remove %s", required, g.Name),
				}
			}
			return &Conflict{
				Gate: required, Version: t.minor,
				Problem: fmt.Sprintf("it cannot be off: %s needs it, and this version has that locked on", g.Name),
				Cure:    "remove it",
			}
		}
	}
	return nil
}

// Decide returns what the lab sets beside the settings of a user, sorted by
// name: wanted gates that are off, the gates that those and the user's require,
// and gates that must go off because the user turned off what they require. A
// gate that the user set is never among them. The user's settings must have
// passed Check.
func (t *Table) Decide(user Set) []Choice {
	d := decision{table: t, user: user, set: Set{}, why: make(map[string]string)}
	for _, name := range sortedNames(user) {
		if g, ok := t.gates[name]; ok && user[name] {
			for _, required := range g.Requires {
				d.turnOn(required, "needed by "+name)
			}
		}
	}
	for _, name := range t.Wanted() {
		if !d.on(name) {
			d.turnOn(name, t.whyWanted(name))
		}
	}
	d.settle()
	choices := make([]Choice, 0, len(d.set))
	for _, name := range sortedNames(d.set) {
		choices = append(choices, Choice{Name: name, On: d.set[name], Why: d.why[name]})
	}
	return choices
}

func (t *Table) whyWanted(name string) string {
	stage := strings.ToLower(string(t.gates[name].Stage))
	if t.gates[name].Stage == GA {
		stage = "GA"
	}
	return fmt.Sprintf("%s in %s and off by default", stage, t.minor)
}

type decision struct {
	table *Table
	user  Set
	set   Set // ours
	why   map[string]string
}

func (d *decision) on(name string) bool {
	if on, ok := d.set[name]; ok {
		return on
	}
	return d.table.On(d.user, name)
}

// turnOn turns a gate on with all that it requires, or leaves all as it is if
// the user does not want one of them.
func (d *decision) turnOn(name, why string) {
	if !d.mayTurnOn(name) {
		return
	}
	if !d.on(name) {
		d.set[name], d.why[name] = true, why
	}
	for _, required := range d.table.gates[name].Requires {
		d.turnOn(required, "needed by "+name)
	}
}

// mayTurnOn reports whether nothing that the user set forbids a gate. The
// tables have no circles: Kubernetes refuses them.
func (d *decision) mayTurnOn(name string) bool {
	g, ok := d.table.gates[name]
	if !ok {
		return false
	}
	if on, set := d.user[name]; set && !on {
		return false
	}
	stage, ok := map[Stage]string{Alpha: allAlpha, Beta: allBeta}[g.Stage]
	if on, set := d.user[stage]; ok && set && !on && !d.user[name] {
		return false
	}
	return !slices.ContainsFunc(g.Requires, func(required string) bool { return !d.mayTurnOn(required) })
}

// settle turns off what a setting of the user has left without something that it
// requires, until nothing more changes.
func (d *decision) settle() {
	for changed := true; changed; {
		changed = false
		for _, g := range d.table.All() {
			if _, set := d.user[g.Name]; set || !d.on(g.Name) {
				continue
			}
			for _, required := range g.Requires {
				if !d.on(required) {
					d.set[g.Name], d.why[g.Name] = false, fmt.Sprintf("needs %s, which is off", required)
					changed = true
					break
				}
			}
		}
	}
}

// APIs returns the API versions, such as "resource.k8s.io/v1beta2", that the API
// server does not serve by default and that components wait for when a gate is
// on: without them the scheduler or the controller manager never gets ready.
func (t *Table) APIs(set Set) []string {
	// From the informers that these versions start.
	needs := map[string]map[string]string{
		"1.34": {"DRADeviceTaints": "resource.k8s.io/v1alpha3"},
		"1.35": {"DRADeviceTaintRules": "resource.k8s.io/v1alpha3", "GenericWorkload": "scheduling.k8s.io/v1alpha1"},
		"1.36": {
			"DRADeviceTaintRules": "resource.k8s.io/v1beta2", "GenericWorkload": "scheduling.k8s.io/v1alpha2",
			"DRAResourcePoolStatus": "resource.k8s.io/v1alpha3",
		},
		"1.37": {
			"GenericWorkload": "scheduling.k8s.io/v1beta1", "CompositePodGroup": "scheduling.k8s.io/v1alpha3",
			"DRAResourcePoolStatus": "resource.k8s.io/v1alpha3",
		},
	}
	var apis []string
	for gate, api := range needs[t.minor] {
		if t.On(set, gate) {
			apis = append(apis, api)
		}
	}
	slices.Sort(apis)
	return slices.Compact(apis)
}

func sortedNames(set Set) []string { return slices.Sorted(maps.Keys(set)) }
