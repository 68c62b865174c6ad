package v1alpha1_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// Each is given as JSON; the live test of manifests/25-config.yaml asks the API
// server about the same ones.
func TestParse(t *testing.T) {
	for name, tc := range v1alpha1.Examples() {
		t.Run(name, func(t *testing.T) {
			got, err := v1alpha1.Parse([]byte(tc.Parameters))
			if tc.Says == "" && err != nil || tc.Says != "" && (err == nil || !strings.Contains(err.Error(), tc.Says)) {
				t.Fatalf("got %v, want %q", err, tc.Says)
			}
			if err == nil && (got.Sharing == nil || got.Sharing.Strategy == v1alpha1.TimeSlicing && got.Sharing.TimeSlicing == nil) {
				t.Errorf("defaults are missing: %+v", got)
			}
		})
	}
}

// Whatever comes in: what is accepted means the same when it is written and
// read again.
func FuzzParse(f *testing.F) {
	for _, tc := range v1alpha1.Examples() {
		f.Add([]byte(tc.Parameters))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := v1alpha1.Parse(data)
		if err != nil {
			return
		}
		written, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := v1alpha1.Parse(written)
		if err != nil {
			t.Fatalf("%s is refused: %v", written, err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Error(diff)
		}
	})
}
