package gpu

import (
	"path"
	"strings"
)

// Library is a user-mode library of NVIDIA's driver.
type Library struct {
	Soname string `json:"soname"` // as programs ask for it
	Path   string `json:"path"`   // the file itself, from the driver root
}

// wanted is a library that containers with a GPU get.
type wanted struct {
	name     string // before ".so"
	abi      string // after ".so."; "" where the soname has the driver's version
	required bool   // without it nothing works
}

// wantedLibraries is what CUDA's driver API loads, directly or when it compiles
// PTX, and NVML. Which of the compilers a driver has depends on its version, so
// only the first two have to be there.
func wantedLibraries() []wanted {
	return []wanted{
		{name: "libnvidia-ml", abi: "1", required: true},
		{name: "libcuda", abi: "1", required: true},
		{name: "libnvidia-ptxjitcompiler", abi: "1"},
		{name: "libnvidia-nvvm", abi: "4"},
		{name: "libnvidia-nvvm70", abi: "4"},
		{name: "libnvidia-gpucomp"},
		{name: "libcudadebugger", abi: "1"},
	}
}

func (w wanted) soname(version string) string {
	if w.abi == "" {
		return w.name + ".so." + version
	}
	return w.name + ".so." + w.abi
}

// usualDirs is where drivers are installed, for hosts whose loader has no cache
// or does not know the driver's directory.
func usualDirs() []string {
	return []string{
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
		"/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current",
		"/usr/lib64", "/usr/lib", "/lib64", "/lib",
		"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
		"/run/opengl-driver/lib", // NixOS
	}
}

// findLibraries looks for the libraries of exactly this version: the kernel
// module talks to no others. others are the versions that it found instead of
// required ones.
func (t tree) findLibraries(version string) (found []Library, missing, others []string) {
	known := map[string][]string{}
	if data := t.read("/etc/ld.so.cache", maxCache); data != nil {
		if entries, err := parseCache(data); err == nil {
			for _, e := range entries {
				known[e.soname] = append(known[e.soname], e.path)
			}
		}
	}
	dirs := usualDirs()
	for _, w := range wantedLibraries() {
		soname := w.soname(version)
		candidates := known[soname]
		for _, p := range candidates {
			// The link may lead to another version than the one beside it.
			candidates = append(candidates, path.Join(path.Dir(p), w.name+".so."+version))
		}
		for _, dir := range dirs {
			candidates = append(candidates, path.Join(dir, w.name+".so."+version), path.Join(dir, soname))
		}
		file, other := t.ofVersion(candidates, w.name, version)
		switch {
		case file != "":
			found = append(found, Library{Soname: soname, Path: file})
		case w.required && other != "":
			others = append(others, other)
		case w.required:
			missing = append(missing, soname)
		}
	}
	return found, missing, others
}

// ofVersion is the first candidate that is a file of this version, or else the
// version of the first that is there.
func (t tree) ofVersion(candidates []string, name, version string) (file, other string) {
	for _, c := range candidates {
		p, err := t.resolve(c)
		if err != nil {
			continue
		}
		v, ok := strings.CutPrefix(path.Base(p), name+".so.")
		if ok && v == version {
			return p, ""
		}
		if ok && isVersion(v) && other == "" {
			other = v
		}
	}
	return "", other
}
