package gpu

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"
)

// SMI is what nvidia-smi says.
type SMI struct {
	// Problem is why it says nothing, in its own words where it has any.
	Problem string   `json:"problem,omitempty"`
	GPUs    []SMIGPU `json:"gpus,omitempty"`
}

// SMIGPU is a GPU in nvidia-smi's words; empty where it does not know.
type SMIGPU struct {
	BusID       string   `json:"busID"` // "0000:17:00.0"
	MIG         string   `json:"mig,omitempty"`
	ComputeMode string   `json:"computeMode,omitempty"`
	Display     string   `json:"display,omitempty"`
	Processes   []string `json:"processes,omitempty"` // "1234 python3"
}

// Answers of nvidia-smi.
const (
	smiEnabled    = "Enabled"
	smiProhibited = "Prohibited"
	smiUnknown    = "[N/A]"
)

// The questions. Their fields are in the order in which they are parsed.
const (
	smiQueryGPUs      = "--query-gpu=pci.bus_id,mig.mode.current,compute_mode,display_active"
	smiQueryProcesses = "--query-compute-apps=gpu_bus_id,pid,process_name"
	smiFormat         = "--format=csv,noheader"
)

const (
	// smiTimeout bounds one question. A GPU that nobody uses takes seconds to
	// wake up.
	smiTimeout = 10 * time.Second
	maxAnswer  = 1 << 20
)

// ask runs the tree's nvidia-smi; nil if it has none.
func (t tree) ask(ctx context.Context) *SMI {
	var program string
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/run/current-system/sw/bin"} {
		if p, err := t.resolve(path.Join(dir, "nvidia-smi")); err == nil {
			program = t.path(p)
			break
		}
	}
	if program == "" {
		return nil
	}
	s := &SMI{}
	rows, err := t.query(ctx, program, smiQueryGPUs, 4)
	if err == nil {
		s.GPUs = parseGPUs(rows)
		rows, err = t.query(ctx, program, smiQueryProcesses, 3)
	}
	if err != nil {
		s.Problem = err.Error()
		return s
	}
	s.addProcesses(rows)
	return s
}

func (t tree) query(ctx context.Context, program, question string, columns int) ([][]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, smiTimeout, fmt.Errorf("no answer within %s", smiTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, question, smiFormat)
	cmd.WaitDelay = time.Second
	if !t.real() {
		// It loads libnvidia-ml.so.1, and has to find the one beside it.
		var dirs []string
		for _, dir := range usualDirs() {
			dirs = append(dirs, t.path(dir))
		}
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(dirs, ":"))
	}
	out, err := cmd.Output()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, errors.New(smiProblem(string(out), err))
	}
	if len(out) > maxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes", len(out))
	}
	reader := csv.NewReader(strings.NewReader(string(out)))
	reader.TrimLeadingSpace = true
	reader.LazyQuotes = true
	reader.FieldsPerRecord = columns
	rows, err := reader.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("an answer that cannot be read: %w", err)
	}
	return rows, nil
}

// smiProblem is the first line that it printed, which is where it says what is
// wrong, or how it ended.
func smiProblem(out string, err error) string {
	if first, _, _ := strings.Cut(strings.TrimSpace(out), "\n"); first != "" {
		return strings.TrimRight(first, ".")
	}
	return err.Error()
}

func parseGPUs(rows [][]string) []SMIGPU {
	var gpus []SMIGPU
	for _, row := range rows {
		gpus = append(gpus, SMIGPU{BusID: busID(row[0]), MIG: known(row[1]), ComputeMode: known(row[2]), Display: known(row[3])})
	}
	return gpus
}

func (s *SMI) addProcesses(rows [][]string) {
	for _, row := range rows {
		for i := range s.GPUs {
			if s.GPUs[i].BusID == busID(row[0]) {
				s.GPUs[i].Processes = append(s.GPUs[i].Processes, row[1]+" "+path.Base(row[2]))
			}
		}
	}
}

// on is what it says of the GPU at this address.
func (s *SMI) on(id string) SMIGPU {
	if s != nil {
		for _, g := range s.GPUs {
			if g.BusID == id {
				return g
			}
		}
	}
	return SMIGPU{BusID: id}
}

func known(answer string) string {
	answer = strings.TrimSpace(answer)
	if answer == smiUnknown || strings.HasPrefix(answer, "[") {
		return ""
	}
	return answer
}

// busID brings NVML's form, 00000000:17:00.0, into that of the kernel.
func busID(id string) string {
	id = strings.ToLower(strings.TrimSpace(id))
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) == 8 {
		return domain[4:] + ":" + rest
	}
	return id
}
