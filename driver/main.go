// Command driver is the DRA driver gpu.lab.example on one node: it publishes
// the node's GPUs, prepares them for Pods and tells how they are. See package
// driver/internal/plugin for what it does, and package driver/api for what
// others may rely on.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/passthrough"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/simulated"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
	"github.com/dra-lab/dra-lab/driver/internal/program"
	"github.com/dra-lab/dra-lab/driver/internal/report"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

// Exit statuses.
const (
	exitDone   = 0 // asked to stop
	exitFailed = 1 // a fatal error, which is the last line on stderr
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Kinds of GPUs.
const (
	kindSimulated = "simulated"
	kindReal      = "passthrough"
)

// flags are the command line.
type flags struct {
	node, podUID, gpus, http string
	kubeconfig, hardwareDir  string
	kubeletDir, cdiDir       string
	driverRoot               string
	inventory                api.Inventory
	verbosity                int
	rules                    health.Rules
}

func parse(args []string, stderr io.Writer) (flags, error) {
	var f flags
	fs := flag.NewFlagSet("driver", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&f.node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node, and of its pool ($NODE_NAME)")
	fs.StringVar(&f.podUID, "pod-uid", os.Getenv("POD_UID"), "`UID` of this Pod; lets another instance replace this one without a gap ($POD_UID)")
	fs.StringVar(&f.gpus, "gpus", kindSimulated, "`kind` of GPUs: "+kindReal+", simulated, or simulated=PROFILE:COUNT to say what a node has that has no "+api.InventoryName)
	fs.StringVar(&f.http, "http", ":8080", "`address` for "+api.PathLive+", "+api.PathReady+", "+api.PathMetrics+" and "+api.PathStatus+"; empty for none")
	fs.StringVar(&f.kubeletDir, "kubelet-dir", kubeletDir, "root `directory` of the kubelet; sockets and checkpoint are below it")
	fs.StringVar(&f.cdiDir, "cdi-dir", api.CDIDir, "`directory` in which the container runtime looks for CDI specs")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` to reach the API server with; empty inside a cluster")
	fs.StringVar(&f.hardwareDir, "hardware-dir", api.HardwareDir, "`directory` with the state of simulated GPUs")
	fs.Func("ignored-xids", "`numbers` of XIDs that are the program's fault, such as 13,31; every other is fatal (default: the vendor's list; none: all are fatal)", func(s string) (err error) {
		f.rules.IgnoredXIDs, err = health.ParseXIDs(s)
		return err
	})
	fs.Func("taint-effects", "`effects` of taints by condition, such as temperature=NoExecute,pcie-width=None (default: NoExecute for what ends a program, else NoSchedule)", func(s string) (err error) {
		f.rules.Effects, err = health.ParseEffects(s)
		return err
	})
	fs.StringVar(&f.driverRoot, "driver-root", driverroot.Dir, "`directory` with the device nodes and libraries of real GPUs")
	fs.IntVar(&f.verbosity, "v", 0, "`level` of logging on stderr")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	kind, list, hasList := strings.Cut(f.gpus, "=")
	switch {
	case fs.NArg() > 0:
		return f, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case f.node == "":
		return f, errors.New("no node name: set -node-name or $NODE_NAME")
	case f.gpus != kindReal && kind != kindSimulated:
		return f, fmt.Errorf("-gpus %q: want %s or %s", f.gpus, kindSimulated, kindReal)
	case f.gpus == kindReal && !filepath.IsAbs(f.driverRoot):
		return f, fmt.Errorf("-driver-root %q: want an absolute path", f.driverRoot)
	case !filepath.IsAbs(f.kubeletDir):
		return f, fmt.Errorf("-kubelet-dir %q: want an absolute path", f.kubeletDir)
	case !hasList:
		return f, nil
	}
	var err error
	if f.inventory, err = api.ParseGPUs(list); err != nil {
		return f, fmt.Errorf("-gpus: %w", err)
	}
	return f, nil
}

// kubeletDir is the usual root directory of the kubelet.
const kubeletDir = "/var/lib/kubelet"

// below is dir, which is under the usual root directory of the kubelet, under
// another one.
func below(root, dir string) string {
	return filepath.Join(root, strings.TrimPrefix(dir, kubeletDir))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		fmt.Fprintf(stderr, "driver: error: %v\n", err)
		return exitUsage
	}
	if err := program.LogTo(stderr, f.verbosity); err != nil {
		fmt.Fprintf(stderr, "driver: error: %v\n", err)
		return exitFailed
	}
	limitMemory()
	defer klog.Flush()
	if err := serve(ctx, f, stdout); err != nil {
		klog.Flush()
		// Several errors are one line, too: the last line of a log is what people see.
		fmt.Fprintf(stderr, "driver: error: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return exitFailed
	}
	return exitDone
}

// limitMemory keeps the garbage collector from saving work by using memory: the
// driver is on every node and does little. The limit is soft; with many devices
// the driver may use more.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(32 << 20)
	}
}

// serve runs the driver until ctx ends.
func serve(ctx context.Context, f flags, stdout io.Writer) (err error) {
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read boot ID: %w", err)
	}
	reports := report.New(stdout, f.node)
	defer reports.Close()
	tell := func(detail, what string) func(error) {
		return func(err error) {
			klog.FromContext(ctx).Error(err, what)
			reports.Report(api.Report{Step: api.StepError, Detail: detail, Err: err.Error()})
		}
	}
	// For labs: simulated hardware is not all that can be broken there.
	var faults *fault.Faults
	if f.gpus != kindReal {
		faults, err = fault.New(fault.Config{
			Dir: filepath.Join(f.hardwareDir, string(api.TargetDriver)),
			OnAct: func(f api.Fault, place fault.Place) {
				klog.FromContext(ctx).V(2).Info("Injected fault acts", "kind", f.Kind, "id", f.ID, "place", place)
				reports.Report(api.Report{Step: api.StepFault, Detail: f.Kind})
			},
			OnError: tell("faults", "Injected faults"),
		})
		if err != nil {
			return err
		}
	}
	client, operations, err := program.Connect(f.kubeconfig, faults.Transport)
	if err != nil {
		return err
	}
	hardware, err := openHardware(f, tell("hardware", "Simulated hardware"))
	if err != nil {
		return err
	}
	defer func() {
		if ret := hardware.Shutdown(); ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("shut GPU library down: %w", ret))
		}
	}()
	gpus, err := gpu.Discover(hardware, hardware.sysfs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpus.Close()) }()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	config := plugin.Config{
		Events: broadcaster.NewRecorder(scheme.Scheme, api.DriverName),
		Node:   f.node, Client: client,
		Hardware: gpus, Binder: hardware,
		PodUID: types.UID(f.podUID), BootID: string(bytes.TrimSpace(bootID)), Version: version(),
		PluginDir: below(f.kubeletDir, api.PluginDir), RegistrarDir: below(f.kubeletDir, api.RegistrarDir), CDIDir: f.cdiDir,
		Reports: reports, Rules: f.rules, Operations: operations,
	}
	if sim := hardware.simulated; sim != nil {
		config.Simulated, config.Shared, config.Partitions, config.Reset, config.Faults = true, sim.Shared, gpus, sim.Reset, faults
		if config.Slots, err = slots.Open(filepath.Join(f.hardwareDir, api.FabricHardwareName), f.cdiDir); err != nil {
			return err
		}
	}
	driver, err := plugin.Open(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	if f.http != "" {
		stop, err := program.ServeHTTP(ctx, f.http, driver.Handler())
		if err != nil {
			return err
		}
		defer stop()
	}
	return driver.Run(ctx)
}

// hardware is an implementation of NVML, initialised, and what it does for
// claims.
type hardware struct {
	library
	sysfs iofs.ReadLinkFS
	// simulated is nil where the GPUs are real: nobody's real GPU is shared, cut,
	// reset or plugged in by this program.
	simulated *simulated.Simulator
}

type library interface {
	gpu.Library
	plugin.Binder
	Shutdown() nvml.Return
}

// openHardware opens the GPUs of this node. Simulated ones tell onError what goes
// wrong in the background.
func openHardware(f flags, onError func(error)) (hardware, error) {
	if f.gpus == kindReal {
		lib, err := passthrough.Open(f.driverRoot)
		if err != nil {
			return hardware{}, err
		}
		return hardware{library: lib, sysfs: os.DirFS("/sys").(iofs.ReadLinkFS)}, nil
	}
	sim, err := simulated.New(simulated.Config{Node: f.node, Dir: f.hardwareDir, Default: f.inventory, OnError: onError})
	if err != nil {
		return hardware{}, err
	}
	if ret := sim.Init(); ret != nvml.SUCCESS {
		return hardware{}, fmt.Errorf("initialize GPU library: %w", ret)
	}
	return hardware{library: sim, sysfs: sim.Sysfs(), simulated: sim}, nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
