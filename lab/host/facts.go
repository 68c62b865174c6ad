package host

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dra-lab/dra-lab/lab/host/gpu"
)

// Facts is what Probe found out about a host. It is data: nothing in it reaches
// back to the host, and Checks judges it without looking again.
type Facts struct {
	OS           string    `json:"os"` // as in runtime.GOOS
	Architecture string    `json:"architecture"`
	Kernel       string    `json:"kernel,omitempty"`
	Release      OSRelease `json:"release"`
	Root         bool      `json:"root"`
	User         string    `json:"user,omitempty"`

	// Engines are the engines that there might be, in the order in which the
	// lab considers them.
	Engines []EngineFacts `json:"engines"`

	CgroupVersion int      `json:"cgroupVersion"` // 0: not mounted
	UserNamespace bool     `json:"userNamespace"` // this process is not in the host's own
	Missing       []string `json:"missingCapabilities,omitempty"`

	InotifyInstances int `json:"inotifyInstances"` // limit per user
	InotifyWatches   int `json:"inotifyWatches"`   // limit per user

	CPUs      int    `json:"cpus"`
	Memory    uint64 `json:"memoryBytes"`          // all of it
	Available uint64 `json:"memoryAvailableBytes"` // for new programs, without swap
	Disks     []Disk `json:"disks"`

	GPU      gpu.Facts         `json:"gpu"`
	Programs map[string]string `json:"programs"` // name to path, "" where missing
	Go       string            `json:"go,omitempty"`
	Packages []string          `json:"missingPackages,omitempty"` // of BuildPackages
}

// Disk is room in a file system that the lab fills.
type Disk struct {
	Path string `json:"path"` // a directory of the lab, or its nearest parent that exists
	Use  string `json:"use"`  // what the lab keeps there
	Free uint64 `json:"freeBytes"`
}

// Room that a lab takes on disk, in bytes.
const (
	ColdDisk uint64 = 12e9 // at its peak, when a node image is built from source: 8.5 GB were seen
	KeptDisk uint64 = 6e9  // what stays: node image, nodes, caches
)

// Restrictions returns what clusters on this host have to work around, as far
// as this process can see it. What counts for a cluster is what its engine's
// containers have: see Engine.Restrictions.
func (f Facts) Restrictions() Restrictions {
	r := Restrictions{CgroupV1: f.CgroupVersion == 1, UserNamespace: f.UserNamespace, Missing: f.Missing}
	for _, name := range f.Missing {
		r.CapSysResource = r.CapSysResource || name == "CAP_SYS_RESOURCE"
	}
	return r
}

// Usable returns the engine that runs privileged containers and that the lab
// would take, or nil.
func (f Facts) Usable() *EngineFacts {
	for i, e := range f.Engines {
		if e.Verified {
			return &f.Engines[i]
		}
		if e.From != "" {
			return nil // the user named this one, so no other will do
		}
	}
	return nil
}

// Report is what "lab doctor" says. It has a JSON form.
type Report struct {
	Checks []Check `json:"checks"`
	Facts  Facts   `json:"facts"`
}

// NewReport judges facts.
func NewReport(f Facts) Report { return Report{Checks: f.Checks(), Facts: f} }

// Failed reports whether there is anything that stops the lab.
func (r Report) Failed() bool {
	for _, c := range r.Checks {
		if c.Status == StatusFail {
			return true
		}
	}
	return false
}

// WriteText writes a line per check, and one more with the cure where one is
// needed.
func (r Report) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Status, c.Name, c.Detail)
		if c.Cure != "" {
			fmt.Fprintf(table, "\t\t→ %s\n", c.Cure)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteJSON writes the report as one indented JSON document.
func (r Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
