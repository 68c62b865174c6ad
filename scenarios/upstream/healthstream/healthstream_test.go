package healthstream_test

import (
	"testing"

	"github.com/dra-lab/dra-lab/scenarios/kubelets"
	"github.com/dra-lab/dra-lab/scenarios/upstream/healthstream"
)

// Given v1.37.2, which leaves health streams behind, when the mend is applied to
// it and a plugin registers and deregisters as often, then none is left, and
// nothing else is different.
func TestMendLeavesNoStream(t *testing.T) {
	if testing.Short() {
		t.Skip("builds one more plugin manager")
	}
	released := kubelets.Kubelet{Version: "v1.37.2"}
	// One round is enough in principle, 1,000 leave between 0 and 8.
	left := 0
	for i := 0; i < 5 && left == 0; i++ {
		churn, err := kubelets.MeasureChurn(t.Context(), released, kubelets.Options{Rounds: 5000, Progress: progress(t)}, true)
		if err != nil {
			t.Fatal(err)
		}
		left = churn.Left
		t.Logf("released: %d rounds left %d streams, %d failures logged: %s", churn.Rounds, churn.Left, churn.Retries, churn.Line)
	}
	if left == 0 {
		t.Error("the released version left no stream in 25,000 rounds: is it mended?")
	}

	mended := kubelets.Kubelet{Version: "v1.37.2", Patch: healthstream.Mend}
	r, err := kubelets.Measure(t.Context(), mended, kubelets.Options{Rounds: 25_000, Progress: progress(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range r.Deviations() {
		t.Error(d)
	}
}

func progress(t *testing.T) func(string) {
	return func(what string) { t.Log(what) }
}
