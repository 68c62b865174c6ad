package api

import (
	"encoding/json"
	"fmt"
)

// Bounds of a process file, and of what is in it.
const (
	maxProcessBytes = 4 << 10
	maxProcessName  = 256
	maxProcessSize  = 1 << 50
	maxPID          = 1 << 22 // what Linux allows
)

// Process is the content of a file in ProcessesName: one process that uses a
// simulated GPU. The process holds flock(2) LOCK_EX on its file for as long as
// it lives; a file that nobody locks is a dead process, whose memory is free
// again and whose file whoever reads it may remove. The name of the file must
// end in ".json" and be new: create it with O_EXCL, take the lock (waiting for
// it: a reader may try the lock for a moment), then write the whole content in
// one write.
type Process struct {
	PID   int    `json:"pid"`   // as the process itself sees it, 1 to 4194304
	Bytes uint64 `json:"bytes"` // memory that it uses on the GPU
	Name  string `json:"name"`  // for people
}

// ParseProcess reads the content of a process file.
func ParseProcess(data []byte) (Process, error) {
	var p Process
	if err := decodeStrict(data, maxProcessBytes, &p); err != nil {
		return Process{}, fmt.Errorf("parse process: %w", err)
	}
	if err := p.Validate(); err != nil {
		return Process{}, fmt.Errorf("parse process: %w", err)
	}
	return p, nil
}

// Validate finds what is wrong with p.
func (p Process) Validate() error {
	switch {
	case p.PID < 1 || p.PID > maxPID:
		return fmt.Errorf("pid %d, want 1 to %d", p.PID, maxPID)
	case p.Bytes > maxProcessSize:
		return fmt.Errorf("%d bytes, at most %d allowed", p.Bytes, uint64(maxProcessSize))
	case len(p.Name) > maxProcessName:
		return fmt.Errorf("name has %d bytes, at most %d allowed", len(p.Name), maxProcessName)
	}
	return nil
}

// Encode checks p and writes it as ParseProcess reads it.
func (p Process) Encode() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("encode process: %w", err)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode process: %w", err)
	}
	return append(data, '\n'), nil
}
