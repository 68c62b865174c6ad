package host

import (
	"fmt"
	"strings"

	"github.com/dra-lab/dra-lab/lab/host/gpu"
)

// GPUs judges whether the host's GPUs can be passed into nodes that the engine
// makes. A nil engine is one that is still to be made here.
func (f Facts) GPUs(e *EngineFacts) gpu.Verdict {
	var engine gpu.Engine
	if e != nil {
		engine = e.forGPUs()
	}
	return gpu.Judge(f.GPU, engine, f.sudo())
}

func (facts *EngineFacts) forGPUs() gpu.Engine {
	return gpu.Engine{Rootless: facts.Rootless, UserNamespace: facts.UserNamespace, Remote: remote(facts.Host)}
}

// remote says whether an engine's address is on another machine, or may be.
// Docker Desktop's is a socket here, with a virtual machine behind it.
func remote(address string) bool {
	local := address == "" || strings.HasPrefix(address, "unix://")
	return !local || strings.Contains(address, "/.docker/desktop/")
}

// JudgeGPUs is [Facts.GPUs] for an engine that was found.
func (e *Engine) JudgeGPUs(f gpu.Facts, root bool) gpu.Verdict {
	return gpu.Judge(f, gpu.Engine{UserNamespace: e.Restrictions.UserNamespace, Remote: remote(e.Host)}, sudo(root))
}

// checkGPUs has a line for what is there, and one for each thing that is not as
// it should be. None of it fails: without GPUs the lab simulates them.
func (f Facts) checkGPUs() []Check {
	const name = "gpu"
	v := f.GPUs(f.Usable())
	if v.Absent {
		return []Check{{Name: name, Status: StatusOK, Detail: "none; the lab simulates them"}}
	}
	var checks []Check
	if len(v.GPUs) > 0 {
		var models []string
		for _, g := range v.GPUs {
			models = append(models, fmt.Sprintf("%s at %s", g.Model, g.BusID))
		}
		checks = append(checks, Check{Name: name, Status: StatusOK,
			Detail: fmt.Sprintf("NVIDIA driver %s, can be passed into nodes: %s", f.GPU.Driver, strings.Join(models, ", "))})
	}
	for _, finding := range v.Findings {
		checks = append(checks, Check{Name: name, Status: StatusWarn, Detail: finding.String(), Cure: finding.Cure})
	}
	return checks
}
