package host

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Exit statuses of the probe program.
const (
	probeFull         = 0 // privileged, and nothing is missing
	probeNoResource   = 3 // privileged, but without CAP_SYS_RESOURCE
	probeUnprivileged = 4 // may not even mount a file system
)

// probeProgram returns a static Linux program that finds out what its container
// may do: it mounts a tmpfs, as a node's systemd will, asks for CAP_SYS_RESOURCE
// in its bounding set and tells by its exit status.
//
// It is written in machine code because it has to run in a container when there
// is no image, no registry, no compiler and no certainty that this program
// itself is static.
func probeProgram(arch string) ([]byte, error) {
	var machine uint16
	var code []byte
	switch arch {
	case "amd64":
		machine, code = 62, probeAMD64()
	case "arm64":
		machine, code = 183, probeARM64()
	default:
		return nil, fmt.Errorf("make probe program: architecture %q is not known", arch)
	}
	return elfProgram(machine, code), nil
}

// elfProgram wraps position-independent code for a machine as a static program.
func elfProgram(machine uint16, code []byte) []byte {
	const base, headers = 0x400000, 64 + 56
	var elf bytes.Buffer
	le := binary.LittleEndian
	put := func(fields ...any) {
		for _, field := range fields {
			_ = binary.Write(&elf, le, field) // a Buffer takes everything
		}
	}
	put([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)) // 64 bit, little endian, version 1
	put(uint16(2), machine, uint32(1))                  // executable
	put(uint64(base+headers), uint64(64), uint64(0))    // entry, program headers, no section headers
	put(uint32(0), uint16(64), uint16(56), uint16(1))   // flags, header sizes, one program header
	put(uint16(0), uint16(0), uint16(0))
	size := uint64(headers + len(code))
	put(uint32(1), uint32(5), uint64(0))        // load, readable and executable
	put(uint64(base), uint64(base), size, size) // where
	put(uint64(0x10000), code)
	return elf.Bytes()
}

func probeAMD64() []byte {
	return bytes.Join([][]byte{
		{0x48, 0x8d, 0x3d, 0x49, 0, 0, 0},  // lea rdi, [slash]
		{0x48, 0x89, 0xfe},                 // mov rsi, rdi
		{0x48, 0x8d, 0x15, 0x39, 0, 0, 0},  // lea rdx, [tmpfs]
		{0x45, 0x31, 0xd2},                 // xor r10d, r10d
		{0x45, 0x31, 0xc0},                 // xor r8d, r8d
		{0xb8, 165, 0, 0, 0},               // mov eax, SYS_mount
		{0x0f, 0x05},                       // syscall
		{0x85, 0xc0},                       // test eax, eax
		{0xbf, probeUnprivileged, 0, 0, 0}, // mov edi, 4
		{0x75, 0x1c},                       // jne done
		{0xbf, 23, 0, 0, 0},                // mov edi, PR_CAPBSET_READ
		{0xbe, 24, 0, 0, 0},                // mov esi, CAP_SYS_RESOURCE
		{0xb8, 157, 0, 0, 0},               // mov eax, SYS_prctl
		{0x0f, 0x05},                       // syscall
		{0xbf, probeNoResource, 0, 0, 0},   // mov edi, 3
		{0x29, 0xc7},                       // sub edi, eax
		{0x29, 0xc7},                       // sub edi, eax
		{0x29, 0xc7},                       // sub edi, eax
		{0xb8, 60, 0, 0, 0},                // done: mov eax, SYS_exit
		{0x0f, 0x05},                       // syscall
		[]byte("tmpfs\x00"),                // tmpfs:
		[]byte("/\x00"),                    // slash:
	}, nil)
}

func probeARM64() []byte {
	var code bytes.Buffer
	for _, word := range []uint32{
		0x500002c0, // adr x0, slash
		0xaa0003e1, // mov x1, x0
		0x10000262, // adr x2, tmpfs
		0xd2800003, // mov x3, #0
		0xd2800004, // mov x4, #0
		0xd2800508, // mov x8, #40 (mount)
		0xd4000001, // svc #0
		0xaa0003e9, // mov x9, x0
		0xd2800080, // mov x0, #4
		0xb5000149, // cbnz x9, done
		0xd28002e0, // mov x0, #23 (PR_CAPBSET_READ)
		0xd2800301, // mov x1, #24 (CAP_SYS_RESOURCE)
		0xd28014e8, // mov x8, #167 (prctl)
		0xd4000001, // svc #0
		0xd2800069, // mov x9, #3
		0xcb000129, // sub x9, x9, x0
		0xcb000129, // sub x9, x9, x0
		0xcb000129, // sub x9, x9, x0
		0xaa0903e0, // mov x0, x9
		0xd2800ba8, // done: mov x8, #93 (exit)
		0xd4000001, // svc #0
	} {
		_ = binary.Write(&code, binary.LittleEndian, word) // a Buffer takes everything
	}
	code.WriteString("tmpfs\x00/\x00")
	return code.Bytes()
}
