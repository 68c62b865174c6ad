package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/driver/driverroot"
)

// Engine is what matters about the container engine that makes the nodes.
type Engine struct {
	Rootless bool
	// UserNamespace says that root in its containers is nobody special outside.
	UserNamespace bool
	// Remote says that its containers run on another machine.
	Remote bool
}

// Finding is something about the host's GPUs that somebody should know.
type Finding struct {
	Found string `json:"found"` // what was seen
	Means string `json:"means"` // what follows from it
	Cure  string `json:"cure"`  // what to run or do; never empty
	// Stops says that no GPU can be passed through. A finding about one GPU
	// that stops only that one has it false.
	Stops bool `json:"stops"`
}

// String is for messages.
func (f Finding) String() string { return f.Found + ": " + f.Means }

// Verdict is what Judge decides.
type Verdict struct {
	// GPUs can be passed through; empty if anything stops that.
	GPUs []GPU `json:"gpus,omitempty"`
	// Findings are in the order in which they should be mended. Without any GPU
	// on the host there are none.
	Findings []Finding `json:"findings,omitempty"`
	// Absent says that the host has no NVIDIA GPU at all.
	Absent bool `json:"absent,omitempty"`
}

// Stop is the first finding for which no GPU can be passed through.
func (v Verdict) Stop() (Finding, bool) {
	i := slices.IndexFunc(v.Findings, func(f Finding) bool { return f.Stops })
	if i < 0 {
		return Finding{}, false
	}
	return v.Findings[i], true
}

// judge collects findings.
type judge struct {
	facts    Facts
	findings []Finding
	sudo     string
}

// Judge decides which GPUs of a host can be passed into nodes. It is a pure
// function. sudo is what a command for root begins with.
func Judge(f Facts, e Engine, sudo string) Verdict {
	if !f.WSL && f.Driver == "" && len(f.PCI) == 0 && len(f.Nodes) == 0 && len(f.Broken) == 0 {
		return Verdict{Absent: true}
	}
	j := judge{facts: f, sudo: sudo}
	j.system()
	if f.Driver == "" || f.WSL {
		return Verdict{Findings: j.findings} // nothing more can be said
	}
	j.libraries()
	j.nodes()
	j.fabric()
	j.smi()
	j.engine(e)
	usable := j.each()
	v := Verdict{GPUs: usable, Findings: j.findings}
	if _, stopped := v.Stop(); stopped {
		v.GPUs = nil
	}
	return v
}

func (j *judge) stop(found, means, cure string) {
	j.findings = append(j.findings, Finding{Found: found, Means: means, Cure: cure, Stops: true})
}

func (j *judge) note(found, means, cure string) {
	j.findings = append(j.findings, Finding{Found: found, Means: means, Cure: cure})
}

func (j *judge) system() {
	f := j.facts
	switch {
	case f.WSL:
		j.stop("a GPU that Windows shares (/dev/dxg)",
			"in WSL2 it has no device nodes of its own that a node could have, and NVML tells neither its processes nor its health",
			"use simulated GPUs here, or start Linux on this machine")
	case f.Driver == "" && f.Nouveau:
		j.stop(fmt.Sprintf("%s, driven by nouveau", count(len(f.PCI), "NVIDIA GPU")),
			"CUDA needs NVIDIA's own kernel module, which is not loaded beside it",
			j.sudo+"sh -c 'echo blacklist nouveau >/etc/modprobe.d/nouveau.conf && update-initramfs -u && reboot', after NVIDIA's driver is installed")
	case f.Driver == "":
		what := count(len(f.PCI), "NVIDIA GPU")
		if len(f.PCI) == 0 {
			what = "device nodes of NVIDIA GPUs" // as a container may have them without the bus
		}
		j.stop(what+", but NVIDIA's kernel module is not loaded",
			"no program reaches a GPU", j.sudo+"modprobe nvidia (install the driver first if there is no such module)")
	case len(f.GPUs) == 0:
		j.stop(fmt.Sprintf("NVIDIA driver %s is loaded, but drives no GPU", f.Driver),
			"the GPU is too old or too new for it, or has failed", j.sudo+"dmesg | grep NVRM")
	}
}

func (j *judge) libraries() {
	f := j.facts
	reinstall := "install the libraries of driver " + f.Driver + ", on Debian and Ubuntu: " + j.sudo + "apt-get install libcuda1 libnvidia-ml1 nvidia-smi"
	switch {
	case len(f.Others) > 0:
		j.stop(fmt.Sprintf("the kernel module has version %s, the libraries have %s", f.Driver, strings.Join(uniq(f.Others), ", ")),
			"they only work together, so every CUDA program fails; an upgrade of the driver has replaced the libraries under the running kernel",
			j.sudo+"reboot, or unload the old module: "+j.sudo+"rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia")
	case len(f.Missing) > 0:
		j.stop(fmt.Sprintf("%s of driver %s not found", strings.Join(f.Missing, " and "), f.Driver),
			"the kernel module is there without the libraries through which programs use it", reinstall)
	case !slices.ContainsFunc(f.Libraries, func(l Library) bool { return strings.HasPrefix(l.Soname, "libnvidia-ptxjitcompiler.") }):
		j.note(fmt.Sprintf("libnvidia-ptxjitcompiler.so.1 of driver %s not found", f.Driver),
			"programs that bring PTX instead of code for this GPU do not run", reinstall)
	}
}

// gpuNodes are the device nodes of GPUs.
func (f Facts) gpuNodes() []string {
	var paths []string
	for p := range f.Nodes {
		if rest := strings.TrimPrefix(p, "/dev/nvidia"); rest != "" && strings.Trim(rest, "0123456789") == "" {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

func (j *judge) nodes() {
	f := j.facts
	const means = "nodes get the device nodes that are there when they are made"
	cure := j.sudo + "nvidia-modprobe -c=0 -u"
	if len(f.Broken) > 0 {
		j.stop(strings.Join(f.Broken, ", ")+": not a device node",
			"something made a file or directory of that name before the driver did, as Docker does with a mount of what is not there",
			j.sudo+"rm -r "+strings.Join(f.Broken, " ")+" && "+cure)
		return
	}
	var missing []string
	for _, name := range []string{driverroot.Control, driverroot.UVM} {
		if _, ok := f.Nodes["/dev/"+name]; !ok {
			missing = append(missing, "/dev/"+name)
		}
	}
	gpus := 0
	for _, g := range f.GPUs {
		if _, ok := f.Nodes[g.Node()]; ok {
			gpus++
		}
	}
	switch {
	case len(f.GPUs) > 0 && gpus == 0:
		missing = append(missing, f.GPUs[0].Node())
	case len(missing) == 1 && missing[0] == "/dev/"+driverroot.UVM:
		j.stop("no device node /dev/"+driverroot.UVM, "CUDA allocates no memory without it, although nvidia-smi works; "+means, cure)
		return
	}
	if len(missing) > 0 {
		j.stop("no device nodes "+strings.Join(missing, ", "), means, cure)
	}
}

func (j *judge) fabric() {
	if j.facts.Switches > 0 && !j.facts.FabricManager {
		j.stop(fmt.Sprintf("%s, but no fabric manager runs", count(j.facts.Switches, "NVSwitch")),
			"CUDA fails to initialise with error 802 (system not yet initialized) until it has set the switches up",
			j.sudo+"systemctl enable --now nvidia-fabricmanager (its version has to be "+j.facts.Driver+")")
	}
}

func (j *judge) smi() {
	s := j.facts.SMI
	switch {
	case s == nil:
		j.note("nvidia-smi not found", "nobody can say whether a GPU drives a display, runs other programs, or is in MIG or prohibited mode",
			"install it, on Debian and Ubuntu: "+j.sudo+"apt-get install nvidia-smi")
	case s.Problem != "" && len(j.facts.Others) > 0:
		// It says in other words what was found already.
	case s.Problem != "":
		j.stop("nvidia-smi says: "+s.Problem, "NVML does not work, so the driver of the lab would not either", j.sudo+"nvidia-smi; "+j.sudo+"dmesg | grep NVRM")
	}
}

func (j *judge) engine(e Engine) {
	switch {
	case e.Remote:
		j.stop("the container engine is on another machine", "nodes run there, the GPU is here", "unset DOCKER_HOST and DOCKER_CONTEXT, or run the lab on that machine")
	case e.Rootless || e.UserNamespace:
		j.stop("the container engine is rootless or remaps users", "its nodes may not make device nodes for containers",
			"use a rootful engine without userns-remap")
	}
}

// each judges the GPUs one by one and returns those that can be used. When none
// is left, what keeps each of them out is what stops the whole.
func (j *judge) each() []GPU {
	var usable []GPU
	var out []int // findings for which a GPU stays out
	for _, g := range j.facts.GPUs {
		s := j.facts.SMI.on(g.BusID)
		name := "GPU " + g.BusID
		good := true
		exclude := func(found, means, cure string) {
			good = false
			out = append(out, len(j.findings))
			j.note(found, means, cure)
		}
		if _, ok := j.facts.Nodes[g.Node()]; !ok && len(j.facts.gpuNodes()) > 0 {
			exclude(fmt.Sprintf("%s has no device node %s", name, g.Node()), "it stays out", fmt.Sprintf("%snvidia-modprobe -c=%d", j.sudo, g.Minor))
		}
		if s.MIG == smiEnabled {
			exclude(name+" is in MIG mode", "CUDA sees its partitions only, and the lab never changes the mode of real GPUs, so it stays out",
				fmt.Sprintf("%snvidia-smi -i %s -mig 0, while nobody uses it", j.sudo, g.BusID))
		}
		if s.ComputeMode == smiProhibited {
			exclude(name+" is in compute mode Prohibited", "no CUDA program may use it, so it stays out",
				fmt.Sprintf("%snvidia-smi -i %s -c DEFAULT", j.sudo, g.BusID))
		}
		if s.Display == smiEnabled {
			j.note(name+" drives a display", "training slows the desktop down, and an error on the GPU may end it",
				"log out of the desktop before you train")
		}
		if len(s.Processes) > 0 {
			j.note(fmt.Sprintf("%s runs other programs (%s)", name, strings.Join(s.Processes, ", ")),
				"they share it with the lab's Pods, and what they use looks like what a claim has left behind", "stop them first")
		}
		if good {
			usable = append(usable, g)
		}
	}
	if len(usable) == 0 {
		for _, i := range out {
			j.findings[i].Stops = true
		}
	}
	return usable
}

func uniq(all []string) []string {
	all = slices.Clone(all)
	slices.Sort(all)
	return slices.Compact(all)
}

func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "ch"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
