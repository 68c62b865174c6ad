package stage

import (
	"strings"
	"testing"
)

// The driver writes its checkpoint's two files by turns: the older one still has
// a claim that is gone.
func TestNewestCheckpoint(t *testing.T) {
	const older = `{"v1":{"checksum":"sha256:1","sequence":7,"data":{"claims":[{"uid":"gone"}]}}}`
	const newer = `{"v1":{"checksum":"sha256:2","sequence":8,"data":{"claims":[{"uid":"here"}]}}}`
	blank := strings.Repeat(" ", 64)
	for name, files := range map[string]string{
		"a older":          older + blank + "\n" + newer + blank,
		"b older":          newer + blank + older + blank,
		"b never written":  newer + blank + blank,
		"a never written":  blank + newer,
		"several versions": `{"v0":{"sequence":8,"data":{"claims":[{"uid":"here"}]}},"v1":{"sequence":8,"data":{"claims":[{"uid":"here"}]}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newestCheckpoint(files)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got, "here") || strings.Contains(got, "gone") {
				t.Errorf("got %s", got)
			}
		})
	}
	for name, files := range map[string]string{"nothing": blank, "torn": older[:20], "not JSON": "cat: no such file"} {
		t.Run(name, func(t *testing.T) {
			if got, err := newestCheckpoint(files); err == nil {
				t.Errorf("got %q, want an error", got)
			}
		})
	}
}
