package catalog

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryScenarioIsListedAndEveryEntryIsAScenario(t *testing.T) {
	// Every test of the package scenarios is a scenario.
	var tests []string
	files, err := filepath.Glob(filepath.Join("..", "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found no scenarios: %v", err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests = append(tests, f.Name.Name)
			}
		}
	}
	var listed []string
	for _, s := range All() {
		listed = append(listed, s.Test)
	}
	slices.Sort(tests)
	slices.Sort(listed)
	if diff := cmp.Diff(tests, listed); diff != "" {
		t.Errorf("tests and list differ (-tests +list):\n%s", diff)
	}
}

func TestEveryScenarioSaysWhatItProvesInItsFile(t *testing.T) {
	for _, s := range All() {
		path := filepath.Join("..", strings.ReplaceAll(s.Name, "-", "")+"_test.go")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("scenario %s: %v", s.Name, err)
			continue
		}
		if !strings.HasPrefix(string(data), "// Scenario "+s.Name+": ") {
			t.Errorf("%s does not begin by saying what scenario %s proves", path, s.Name)
		}
	}
}

func TestFindKnowsNames(t *testing.T) {
	if all, err := Find(nil); err != nil || len(all) != len(All()) {
		t.Errorf("Find without names = %v, %v, want all", all, err)
	}
	found, err := Find([]string{"pending", "training"})
	if err != nil {
		t.Fatal(err)
	}
	pattern := regexp.MustCompile(Pattern(found))
	for test, want := range map[string]bool{"TestTraining": true, "TestPending": true, "TestBasic": false, "TestTrainingMore": false} {
		if got := pattern.MatchString(test); got != want {
			t.Errorf("pattern %s matches %s: %v, want %v", pattern, test, got, want)
		}
	}
	if _, err := Find([]string{"training", "trainings"}); err == nil || !strings.Contains(err.Error(), `"trainings"`) {
		t.Errorf("Find of a misspelt name = %v, want an error that names it", err)
	}
}
