package install

import (
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestParseGPUs(t *testing.T) {
	for _, c := range []struct {
		in, want string
		count    int
	}{
		{"simulated", "simulated=h100:4", 4},
		{"simulated=a100:8", "simulated=a100:8", 8},
		{"simulated=h100:2,t4:1", "simulated=h100:2,t4:1", 3},
		{"simulated=h100:2,t4:shared", "simulated=h100:2,t4:1:shared", 3},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, err := ParseGPUs(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != c.want || got.count() != c.count {
				t.Errorf("%s with %d GPUs, want %s with %d", got, got.count(), c.want, c.count)
			}
			file, err := got.file()
			if err != nil {
				t.Fatal(err)
			}
			inventory, err := api.ParseInventory(file)
			if err != nil {
				t.Fatal(err)
			}
			if "simulated="+inventory.String() != c.want {
				t.Errorf("file %q, want what %s says", file, c.want)
			}
		})
	}
}

func TestModes(t *testing.T) {
	for in, want := range map[string]Mode{
		"": Auto, "auto": Auto, "simulated": Simulated, "simulated=t4:1": Simulated, "passthrough": Passthrough,
	} {
		got, err := ParseGPUs(in)
		if err != nil || got.Mode() != want {
			t.Errorf("%q is %s, %v; want %s", in, got.Mode(), err, want)
		}
	}
	if (GPUs{}).Mode() != Simulated || (GPUs{}).Choose(Passthrough).String() != "passthrough" || (GPUs{mode: Auto}).Choose(Simulated).String() != "simulated=h100:4" {
		t.Error("the modes of the zero value, of passthrough or of auto's choice are wrong")
	}
}

func TestWrongGPUsAreUsageErrorsWithAnExample(t *testing.T) {
	for in, want := range map[string]string{
		"simulated=h1000:4": `unknown profile "h1000"`,
		"simulated=":        `unknown profile ""`,
		"simulated=h100:0":  "count 0",
		"simulated=h100:x":  `count "x" is not a number`,
		"passthrough=2":     `unknown mode "passthrough"`,
		"real":              `unknown mode "real"`,
	} {
		t.Run(in, func(t *testing.T) {
			_, err := ParseGPUs(in)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("error %v, want one with %q", err, want)
			}
			if ui.Status(err) != ui.StatusUsage || !strings.Contains(ui.Hint(err), "simulated=h100:4") {
				t.Errorf("status %d, hint %q, want a usage error with an example", ui.Status(err), ui.Hint(err))
			}
		})
	}
}
