package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/metrics"
)

// Driver is one instance of the driver. Open makes it, Run runs it once.
type Driver struct {
	cfg     Config
	devices atomic.Pointer[devices]
	store   *checkpoint.Store
	cdi     *cdi.Dir
	monitor *health.Monitor
	metrics *metrics.Metrics

	// stop ends Run; its cause decides how the process exits.
	stop context.CancelCauseFunc

	// serving is closed when the driver has found that it answers on its own
	// socket; only then may the kubelet know of it.
	serving   chan struct{}
	published atomic.Bool
	// watchers counts open health streams.
	watchers atomic.Int32
	// registered is set by the kubelet's word.
	registered atomic.Bool
	// republish has a value when slices did not reach the API server.
	republish chan struct{}
	// reconfirm has a value when a kubelet has registered the driver; missing
	// when slices were found to be missing.
	reconfirm, missing chan struct{}
	// leaked has a value when a claim has left something behind; retaint when
	// leakTaints may have changed.
	leaked, retaint chan struct{}
	// socketFault takes the service socket away; nil without faults.
	socketFault *losable

	mu sync.Mutex
	// leakTaints are by device name.
	leakTaints map[string]health.Taint
	helper     *kubeletplugin.Helper
	self       *draconn.Conn
	// told are background errors that were reported already: many come again
	// with every attempt.
	told map[string]bool
}

// Open reads the checkpoint and prepares everything that needs no kubelet. It
// starts nothing. The caller has to Close the driver.
func Open(ctx context.Context, cfg Config) (_ *Driver, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open driver: %w", err)
	}
	cfg.Hardware = inTime(cfg.Hardware, cfg.UsageWait)
	if err := os.MkdirAll(filepath.Join(cfg.PluginDir, locksDir), 0o700); err != nil {
		return nil, fmt.Errorf("open driver: %w", err)
	}
	store, err := checkpoint.Open(ctx, filepath.Join(cfg.PluginDir, api.CheckpointName), cfg.BootID)
	if err != nil {
		return nil, fmt.Errorf("open driver: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, store.Close())
		}
	}()
	store.Before(func() error { return cfg.Faults.Pass(ctx, fault.Checkpoint) })
	d := &Driver{
		cfg:       cfg,
		store:     store,
		cdi:       cdi.NewDir(cfg.CDIDir),
		stop:      func(error) {},
		serving:   make(chan struct{}),
		republish: make(chan struct{}, 1),
		reconfirm: make(chan struct{}, 1),
		missing:   make(chan struct{}, 1),
		leaked:    make(chan struct{}, 1),
		retaint:   make(chan struct{}, 1),
		told:      map[string]bool{},
	}
	d.takeInventory()
	latched, damage, err := d.readLatched()
	if err != nil {
		return nil, fmt.Errorf("open driver: %w", err)
	}
	d.monitor, err = health.New(health.Config{
		GPUs: cfg.Hardware.List(), Hardware: cfg.Hardware,
		Rules: cfg.Rules, Every: cfg.ProbeEvery,
		Latched: latched, Save: d.saveLatched,
		OnEvent: d.onEvent,
		OnError: func(err error) { d.background(ctx, "health", err) },
	})
	if err != nil {
		return nil, fmt.Errorf("open driver: %w", err)
	}
	d.metrics = metrics.New(metrics.Live{
		HealthWatchers:   func() int { return int(d.watchers.Load()) },
		CheckpointWrites: store.Writes,
		ReportsDropped:   cfg.Reports.Dropped,
		Prepared: func() (claims, devices int) {
			entries, err := store.List(ctx)
			if err != nil {
				return -1, -1
			}
			return len(entries), len(heldBy(entries))
		},
	})
	if damage != nil {
		d.background(ctx, "health", damage)
	}
	return d, nil
}

// firstLook bounds the wait for GPUs that hang when the driver starts: they are
// published as unknown then.
const firstLook = 2 * time.Second

// Close gives up what Open has taken. Run must have returned.
func (d *Driver) Close() error { return d.store.Close() }

// Run serves until ctx ends, and returns nil then, or until something goes
// wrong that only a new process can mend, and returns that.
func (d *Driver) Run(ctx context.Context) (err error) {
	parent := ctx
	ctx, d.stop = context.WithCancelCause(ctx)
	defer d.stop(errStopped)
	d.report(api.Report{Step: api.StepStarted, Detail: fmt.Sprintf("version %s, boot %s, %d devices", d.cfg.Version, d.cfg.BootID, len(d.inventory().GPUs))})

	var running sync.WaitGroup
	defer running.Wait()
	defer d.stop(errStopped)
	running.Go(func() { d.monitor.Run(ctx) })
	select {
	case <-d.monitor.First():
	case <-time.After(firstLook):
	case <-ctx.Done():
		return nil
	}
	var helper *kubeletplugin.Helper
	if err = d.restore(ctx); err == nil {
		err = d.lookAtLeaks(ctx) // before the devices are published
	}
	if err == nil {
		helper, err = d.start(ctx)
	}
	if err != nil {
		if parent.Err() != nil {
			return nil // it was told to end before it served
		}
		return err
	}
	defer helper.Stop()
	if d.cfg.Slots != nil {
		attached, err := d.startAttached(ctx)
		if err != nil {
			return err
		}
		defer attached.Stop()
	}
	running.Go(func() { d.publishing(ctx) })
	running.Go(func() { d.confirming(ctx) })
	running.Go(func() { d.checkSelf(ctx) })
	running.Go(func() { d.watchLeaks(ctx) })
	running.Go(func() { d.collecting(ctx) })
	running.Go(func() { d.watchSocketFault(ctx) })
	if d.cfg.Operations != nil {
		running.Go(func() { d.operating(ctx) })
	}

	<-ctx.Done()
	cause := context.Cause(ctx)
	if parent.Err() != nil {
		d.report(api.Report{Step: api.StepStopped, Detail: cause.Error()})
		return nil
	}
	d.report(api.Report{Step: api.StepStopped, Err: cause.Error()})
	return cause
}

// start brings up the sockets. The registration socket appears only when
// d.serving is closed.
func (d *Driver) start(ctx context.Context) (*kubeletplugin.Helper, error) {
	registrar := filepath.Join(d.cfg.RegistrarDir, kubeletplugin.RollingUpdateRegistrarSocketFile(d.cfg.RegistrarDir, api.DriverName, d.cfg.PodUID))
	if err := d.sweepSockets(ctx, api.DriverName, d.cfg.PluginDir, registrar, d.socket()); err != nil {
		return nil, err
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(api.DriverName),
		kubeletplugin.NodeName(d.cfg.Node),
		kubeletplugin.KubeClient(d.cfg.Client),
		kubeletplugin.PluginDataDirectoryPath(d.cfg.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(d.cfg.RegistrarDir),
		kubeletplugin.RollingUpdate(d.cfg.PodUID),
		kubeletplugin.PluginListener(d.listenPlugin),
		kubeletplugin.RegistrarListener(d.listenRegistrar),
		kubeletplugin.GRPCInterceptor(d.observe),
		// The checkpoint and a lock per claim serialize what must be, between
		// instances too. One claim that waits does not hold up the others.
		kubeletplugin.Serialize(false),
	)
	if err != nil {
		return nil, fmt.Errorf("start kubelet plugin: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.helper = helper
	return helper, nil
}

// socket is where the kubelet reaches this instance.
func (d *Driver) socket() string {
	if d.cfg.PodUID == "" {
		return filepath.Join(d.cfg.PluginDir, api.SocketName)
	}
	return filepath.Join(d.cfg.PluginDir, "dra-"+string(d.cfg.PodUID)+".sock")
}

// HandleError is the helper's way to tell what goes wrong in the background.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	err = fmt.Errorf("%s: %w", msg, err)
	d.background(ctx, "plugin", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.stop(err)
		return
	}
	// What the API server has dropped or refused, it would again.
	var dropped *resourceslice.DroppedFieldsError
	if !errors.As(err, &dropped) && !apierrors.IsInvalid(err) {
		signal(d.republish)
	}
}

// background takes note of an error that has no caller.
func (d *Driver) background(ctx context.Context, source string, err error) {
	klog.FromContext(ctx).Error(err, "Background error", "source", source)
	d.metrics.Errors.WithLabelValues(source).Inc()
	d.mu.Lock()
	again := d.told[err.Error()]
	if len(d.told) < maxRemembered {
		d.told[err.Error()] = true
	}
	d.mu.Unlock()
	if !again {
		d.report(api.Report{Step: api.StepError, Detail: source, Err: err.Error()})
	}
}

// maxRemembered bounds the errors that are reported once only; one more is
// reported as often as it comes.
const maxRemembered = 256

func (d *Driver) report(r api.Report) { d.cfg.Reports.Report(r) }

// signal leaves one value in c, which has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
