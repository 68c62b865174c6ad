package nearest_test

import (
	"testing"

	"github.com/dra-lab/dra-lab/lab/cluster/internal/nearest"
)

func TestWord(t *testing.T) {
	fields := []string{"featureGates", "nodes", "networking", "name"}
	for _, tc := range []struct{ name, word, want string }{
		{"a letter is missing", "featurGates", "featureGates"},
		{"upper and lower case do not count", "featuregates", "featureGates"},
		{"two letters are swapped", "ndoes", "nodes"},
		{"a short word may differ by one letter", "nam", "name"},
		{"nothing is near", "kubernetesVersion", ""},
		{"nothing at all", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := nearest.Word(tc.word, fields); got != tc.want {
				t.Errorf("Word(%q) = %q, want %q", tc.word, got, tc.want)
			}
		})
	}
}
