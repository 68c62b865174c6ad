package health

import "strconv"

// applicationXIDs are errors of the program that ran on the GPU, not of the
// GPU: the next program is none the worse. Everything else is taken as fatal.
//
// The list is what the vendor's own components skip by default, both the
// Kubernetes device plugin (NVIDIA/k8s-device-plugin, internal/rm/health.go)
// and the DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu,
// cmd/gpu-kubelet-plugin/device_health.go); the meaning of each number is in
// the vendor's catalogue, https://docs.nvidia.com/deploy/xid-errors/.
func applicationXIDs() []uint64 {
	return []uint64{
		13,  // graphics engine exception
		31,  // GPU memory page fault
		43,  // GPU stopped processing
		45,  // preemptive cleanup, due to previous errors
		68,  // video processor exception
		109, // context switch timeout
	}
}

// describeXID says in a few words what an XID means, for messages.
func describeXID(xid uint64) string {
	meaning := map[uint64]string{
		13:  "graphics engine exception",
		31:  "GPU memory page fault",
		32:  "invalid or corrupted push buffer stream",
		38:  "driver firmware error",
		43:  "GPU stopped processing",
		45:  "preemptive cleanup, due to previous errors",
		46:  "GPU stopped processing",
		48:  "double bit ECC error",
		61:  "internal micro-controller breakpoint",
		62:  "internal micro-controller halt",
		63:  "memory row remapped or page retired",
		64:  "memory row remapping or page retirement failed",
		68:  "video processor exception",
		69:  "graphics engine class error",
		74:  "NVLink error",
		79:  "GPU has fallen off the bus",
		92:  "high single bit ECC error rate",
		94:  "contained ECC error",
		95:  "uncontained ECC error",
		109: "context switch timeout",
		110: "security fault",
		119: "GSP RPC timeout",
		120: "GSP error",
		140: "unrecovered ECC error",
		143: "GPU initialization failure",
	}[xid]
	text := "XID " + strconv.FormatUint(xid, 10)
	if meaning != "" {
		text += ": " + meaning
	}
	return text
}
