package lesson

import (
	"maps"
	"strings"
	"testing"
	"testing/fstest"
)

// A folder that lacks something is refused with what it lacks.
func TestRead(t *testing.T) {
	whole := map[string]string{
		"text.md":              "# Title\n\nTakes 10 minutes.\n",
		"hints.md":             "vague\n---\nexact\n",
		"solution/a.yaml":      "kind: Pod\n",
		"draft/a.yaml":         "kind: Pod\n",
		"start/b.yaml":         "kind: Pod\n",
		"start/not-a-manifest": "x",
	}
	check := func(Snapshot) []Finding { return nil }
	read := func(folder string, change func(map[string]string)) (Exercise, error) {
		files := maps.Clone(whole)
		change(files)
		fsys := fstest.MapFS{}
		for name, data := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(data)}
		}
		return Read(folder, fsys, "nothing", check)
	}
	e, err := read("07-some-name", func(map[string]string) {})
	if err != nil {
		t.Fatal(err)
	}
	if e.Number != 7 || e.Name != "some-name" || e.Title != "Title" || e.Minutes != 10 || len(e.Hints) != 2 ||
		len(e.Start) != 1 || len(e.Draft) != 1 || len(e.Solution) != 1 || e.Folder() != "07-some-name" {
		t.Errorf("%+v", e)
	}
	for want, change := range map[string]func(map[string]string){
		"text.md":                    func(f map[string]string) { delete(f, "text.md") },
		"the first line is no title": func(f map[string]string) { f["text.md"] = "Takes 10 minutes." },
		`no line "Takes N minutes."`: func(f map[string]string) { f["text.md"] = "# Title" },
		"at most 60 are a page":      func(f map[string]string) { f["text.md"] += strings.Repeat("\n", 61) + "x" },
		"at least 2 hints":           func(f map[string]string) { f["hints.md"] = "one" },
		"no solution":                func(f map[string]string) { delete(f, "solution/a.yaml") },
	} {
		if _, err := read("07-some-name", change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := read("some-name", func(map[string]string) {}); err == nil {
		t.Error("a folder without a number was read")
	}
}

func TestSolved(t *testing.T) {
	var f Findings
	if Solved(f) {
		t.Error("nothing found is solved")
	}
	f.That(true, "yes", "no")
	if !Solved(f) || f[0].Text != "yes" {
		t.Errorf("%v", f)
	}
	f.That(false, "yes", "no")
	if Solved(f) || f[1].Text != "no" {
		t.Errorf("%v", f)
	}
}

// What somebody else has written into the ConfigMap is no reason to fail.
func TestProgressThatCannotBeRead(t *testing.T) {
	for _, data := range []string{"", "{", `{"current":1}`, `{"of":null}`} {
		if p := parseProgress(data); p.Current != "" || p.Of == nil {
			t.Errorf("%q: %+v", data, p)
		}
	}
}
