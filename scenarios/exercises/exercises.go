// Package exercises lists the exercises. Each is a folder with a text, hints,
// manifests and a check; adding one is adding a folder and its line here.
package exercises

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	firstclaim "github.com/dra-lab/dra-lab/scenarios/exercises/01-first-claim"
	templateorname "github.com/dra-lab/dra-lab/scenarios/exercises/02-template-or-name"
	selection "github.com/dra-lab/dra-lab/scenarios/exercises/03-selection"
	whypending "github.com/dra-lab/dra-lab/scenarios/exercises/04-why-pending"
	inside "github.com/dra-lab/dra-lab/scenarios/exercises/05-inside-the-container"
	failinggpu "github.com/dra-lab/dra-lab/scenarios/exercises/06-failing-gpu"
	tolerate "github.com/dra-lab/dra-lab/scenarios/exercises/07-tolerate"
	settings "github.com/dra-lab/dra-lab/scenarios/exercises/08-settings"
	alternatives "github.com/dra-lab/dra-lab/scenarios/exercises/09-alternatives"
	byresourcename "github.com/dra-lab/dra-lab/scenarios/exercises/10-by-resource-name"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

// All reads the exercises, in the order in which they are best done.
func All() ([]lesson.Exercise, error) {
	var all []lesson.Exercise
	var failed error
	for _, read := range []func() (lesson.Exercise, error){
		firstclaim.New, templateorname.New, selection.New, whypending.New, inside.New, failinggpu.New,
		tolerate.New, settings.New, alternatives.New, byresourcename.New,
	} {
		e, err := read()
		all, failed = append(all, e), errors.Join(failed, err)
	}
	if failed != nil {
		return nil, failed
	}
	for i, e := range all {
		if e.Number != i+1 {
			return nil, fmt.Errorf("list exercises: %s is in place %d", e.Folder(), i+1)
		}
	}
	return all, nil
}

// Find returns the exercise with this number, name, or both: "1", "first-claim",
// "01-first-claim".
func Find(all []lesson.Exercise, id string) (lesson.Exercise, error) {
	number, err := strconv.Atoi(id)
	var names []string
	for _, e := range all {
		if id == e.Name || id == e.Folder() || err == nil && number == e.Number {
			return e, nil
		}
		names = append(names, e.Folder())
	}
	return lesson.Exercise{}, fmt.Errorf("find exercise %q: want one of %s", id, strings.Join(names, ", "))
}
