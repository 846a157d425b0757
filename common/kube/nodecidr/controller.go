// SPDX-License-Identifier: Apache-2.0

package nodecidr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Controller assigns pod ranges to nodes.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	nodes    core.NodeInterface
	events   core.EventsGetter
	leases   coordination.LeasesGetter
	metrics  *metrics
	watchdog *leaderelection.HealthzAdaptor
	// leading is true if this controller is elected, elected if any controller is.
	leading, elected atomic.Bool

	// Only the worker uses the fields below.
	recorder record.EventRecorder
	wake     chan struct{} // capacity 1
	// waiting is true if a node got no range in the last run.
	waiting atomic.Bool
	// reported maps a node to the problem that was last reported for it.
	reported map[string]string
}

// New prepares a Controller. It does not connect.
func New(cfg Config, log *slog.Logger) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config, err := cfg.client()
	if err != nil {
		return nil, err
	}
	client, err := core.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	c := &Controller{cfg: cfg, log: log, nodes: client.Nodes(), events: client, metrics: newMetrics(), wake: make(chan struct{}, 1),
		reported: make(map[string]string),
		watchdog: leaderelection.NewLeaderHealthzAdaptor(cfg.Duration)}
	if c.leases, err = coordination.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	return c, nil
}

// Run takes part in the election and works while this controller is elected. It returns when the context is
// done, and with an error when another controller was elected: its state is then out of date.
func (c *Controller) Run(ctx context.Context) error {
	logs := klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(c.log.Handler()))
	elect, resign := context.WithCancel(logs)
	defer resign()
	started, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: c.cfg.Namespace, Name: c.cfg.Lease}, Client: c.leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.cfg.Identity}},
		LeaseDuration: c.cfg.Duration, RenewDeadline: c.cfg.RenewDeadline, RetryPeriod: c.cfg.RetryPeriod,
		ReleaseOnCancel: true, WatchDog: c.watchdog, Name: c.cfg.Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lead context.Context) {
				close(started)
				defer close(ended)
				work, stop := context.WithCancel(klog.NewContext(ctx, klog.FromContext(logs)))
				defer stop()
				defer context.AfterFunc(lead, stop)()
				c.work(work)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(who string) {
				c.elected.Store(true)
				c.log.Info("a controller is elected", "identity", who)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare the election: %w", err)
	}
	// Work ends before the Lease is released.
	defer context.AfterFunc(ctx, func() {
		select {
		case <-started:
			<-ended
		default:
		}
		resign()
	})()
	c.log.Info("taking part in the election", "lease", c.cfg.Namespace+"/"+c.cfg.Lease, "identity", c.cfg.Identity)
	elector.Run(elect)
	select {
	case <-started:
		<-ended
	default:
	}
	if ctx.Err() == nil {
		return errors.New("the lease was lost: another controller works, or the API server cannot be reached")
	}
	return nil
}

// work assigns ranges to nodes until the context is done.
func (c *Controller) work(ctx context.Context) {
	c.leading.Store(true)
	c.metrics.leader.Set(1)
	defer c.metrics.leader.Set(0)
	defer c.leading.Store(false)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&core.EventSinkImpl{Interface: c.events.Events("")})
	c.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "isthmus-controller"})
	following := make(chan struct{})
	go func() { defer close(following); c.follow(ctx) }()
	defer func() { <-following }()
	c.run(ctx)
}

// run assigns ranges after each trigger, after a failure, and at intervals.
func (c *Controller) run(ctx context.Context) {
	var delay time.Duration
	var since time.Time // of the first trigger that no run has followed
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			if since.IsZero() {
				since = time.Now()
			}
			wait = min(c.cfg.Debounce, time.Until(since.Add(c.cfg.MaxDebounce)))
		case <-time.After(wait):
			since = time.Time{}
			err := c.assign(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				delay, wait = 0, c.cfg.Resync
			} else {
				delay = min(max(2*delay, c.cfg.RetryMin), c.cfg.RetryMax)
				wait = delay
				c.log.Error("assign pod ranges to nodes", "error", err, "again in", wait)
			}
		}
	}
}

// Handler serves /metrics, /healthz (200 unless this controller leads and cannot renew its Lease) and
// /readyz (200 when any controller leads).
func (c *Controller) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", c.metrics.handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := c.watchdog.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.leading.Load() && !c.elected.Load() {
			http.Error(w, "no controller is elected yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
