package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

func TestLackingKubelets(t *testing.T) {
	present := []nodeimage.Image{{Kubelet: "v1.36.3"}, {Kubelet: "v1.37.2"}}
	for name, c := range map[string]struct {
		present      []nodeimage.Image
		wanted, want []string
	}{
		"no cluster yet":        {nil, []string{"v1.37.2", "v1.36.3", "v1.37.2"}, []string{"v1.37.2", "v1.36.3"}},
		"as many as there are":  {present, []string{"v1.37.2", "v1.36.3"}, nil},
		"fewer than there are":  {present, []string{"v1.37.2"}, nil},
		"one that is not there": {present, []string{"v1.37.2", "v1.9.1", "v1.35.4"}, []string{"v1.9.1", "v1.35.4"}},
		"whatever is there":     {present, nil, nil},
	} {
		var wanted []kubelet
		for _, version := range c.wanted {
			wanted = append(wanted, kubelet{version: version})
		}
		var got []string
		for _, k := range lacking(c.present, wanted) {
			got = append(got, k.version)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
