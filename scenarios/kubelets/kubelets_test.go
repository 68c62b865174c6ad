package kubelets

import (
	"strings"
	"testing"
)

// The released plugin managers do what is known of them.
func TestReleasedVersions(t *testing.T) {
	for _, k := range Versions() {
		if testing.Short() && k.Version != "v1.36.3" && k.Version != "v1.37.2" {
			continue // each has to be compiled first
		}
		t.Run(k.Name(), func(t *testing.T) {
			r, err := Measure(t.Context(), k, Options{Progress: func(what string) { t.Log(what) }})
			if err != nil {
				t.Fatal(err)
			}
			var table strings.Builder
			if err := (&Report{Results: []*Result{r}}).WriteText(&table); err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s%s", &table, r.ChurnOneCPU.Line)
			if r.Idle.Stack != "" {
				t.Logf("the goroutine that holds the others up:\n%s", r.Idle.Stack)
			}
			for _, d := range r.Deviations() {
				t.Error(d)
			}
		})
	}
}

func TestPatchWithoutContext(t *testing.T) {
	const patch = `--- a/dir/file.go
+++ b/dir/file.go
@@ -1,0 +2,2 @@
+one and a third
+one and two thirds
@@ -3 +4,0 @@
-three
@@ -4 +5 @@
-four
+4
`
	files := map[string][]byte{"file.go": []byte("one\ntwo\nthree\nfour\nfive\n"), "other.go": []byte("as it is")}
	if err := applyPatch(files, []byte(patch)); err != nil {
		t.Fatal(err)
	}
	if got, want := string(files["file.go"]), "one\none and a third\none and two thirds\ntwo\n4\nfive\n"; got != want {
		t.Errorf("patched file is %q, want %q", got, want)
	}

	for name, c := range map[string]struct{ patch, want string }{
		"another line is there": {"--- a/file.go\n+++ b/file.go\n@@ -1 +0,0 @@\n-two\n", "line 1 is not"},
		"the file is missing":   {"--- a/none.go\n+++ b/none.go\n@@ -1 +0,0 @@\n-two\n", "no such file"},
		"the file is shorter":   {"--- a/file.go\n+++ b/file.go\n@@ -90,0 +91 @@\n+two\n", "outside of the file"},
		"it has context":        {"--- a/file.go\n+++ b/file.go\n@@ -1,2 +1 @@\n one\n-two\n", "unexpected line"},
	} {
		t.Run(name, func(t *testing.T) {
			err := applyPatch(map[string][]byte{"file.go": []byte("one\ntwo\n")}, []byte(c.patch))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}
