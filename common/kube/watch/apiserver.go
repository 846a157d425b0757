// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// APIConfig configures an APIServer.
type APIConfig struct {
	// Kubeconfig is the path of a kubeconfig file; empty inside a cluster.
	Kubeconfig string
	// Context is the context of the kubeconfig file; empty means its current one.
	Context string
	// Impersonate and ImpersonateGroups are the user and the groups to impersonate, with Rules only.
	Impersonate       string
	ImpersonateGroups []string
	// Rules finds the kubeconfig files as kubectl does: --kubeconfig, KUBECONFIG, the file in the home
	// directory.
	Rules bool
	// Optional are the kinds that are left out if the account may not read them.
	Optional []string
	// Dial, if set, connects to the API server.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// UserAgent identifies this program to the API server.
	UserAgent string
	// PageSize bounds the objects of one response, if the API server does not stream them.
	PageSize int64
	// Interval is the minimum time between two snapshots.
	Interval time.Duration
	// Discovery is the interval of requests for the served kinds of cluster-wide policies.
	Discovery time.Duration
	// Timeout bounds one request that is not a watch.
	Timeout time.Duration
	// Backoff bounds the pause between two attempts to reach the API server.
	Backoff time.Duration
	// CatchUp bounds how long changes wait until all kinds are up to date, after an outage of the API
	// server.
	CatchUp time.Duration
}

// DefaultAPIConfig returns the defaults for a kubeconfig file, or for a pod if the name is empty.
func DefaultAPIConfig(kubeconfig string) APIConfig {
	return APIConfig{Kubeconfig: kubeconfig, UserAgent: "isthmus-agent", PageSize: 500, Interval: 5 * time.Millisecond,
		Discovery: time.Minute, Timeout: 60 * time.Second, Backoff: 10 * time.Second, CatchUp: 10 * time.Second}
}

// Validate reports everything that is wrong with the APIConfig.
func (c APIConfig) Validate() error {
	var errs []error
	if c.PageSize <= 0 {
		errs = append(errs, fmt.Errorf("API server: PageSize: %d: must be greater than 0", c.PageSize))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Interval", c.Interval}, {"Discovery", c.Discovery}, {"Timeout", c.Timeout}, {"Backoff", c.Backoff}, {"CatchUp", c.CatchUp}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("API server: %s: %s: must be greater than 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// APIServer is a Source that watches an API server.
type APIServer struct {
	cfg    APIConfig
	log    *slog.Logger
	config *rest.Config
	host   string
	// builtin are the clients of the built-in groups, core that of the core group.
	builtin map[schema.GroupVersion]rest.Interface
	core    rest.Interface
	custom  dynamic.Interface

	wake chan struct{} // capacity 1
	// away is true from the first read error of a kind until all kinds are up to date.
	away atomic.Bool

	mu sync.Mutex
	// feeds are the watched kinds, by kind.
	feeds map[string]*feed
	// discovered is true once the served kinds of cluster-wide policies are known.
	discovered bool
	// refusals are the problems that discovery found.
	refusals []string
	// faults are the remarks on objects, by object.
	faults map[string][]string
	// unsound are the invalid objects without an earlier valid version in force.
	unsound map[string]bool
	// uids are those of the policies and reported objects whose version is in force.
	uids  map[string]string
	early early
	// statuses are the statuses of cluster-wide policies. remarks are the findings about policies from
	// reading them. Both are by origin without UID. statusChanged is called when either has changed, and
	// may be nil.
	statuses      map[model.Origin]*convert.Status
	remarks       map[model.Origin]report.Remarks
	statusChanged func()
	// published is true once the first complete state has been published.
	published bool
	// heldSince is when changes began to wait for other kinds to be up to date; zero if none wait. waived
	// is true if they have waited long enough.
	heldSince time.Time
	waived    bool
}

var _ kube.Source = (*APIServer)(nil)

// NewAPIServer reads the credentials and prepares an APIServer. It does not connect.
func NewAPIServer(cfg APIConfig, log *slog.Logger) (*APIServer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	return newAPIServer(cfg, config, log)
}

func restConfig(cfg APIConfig) (*rest.Config, error) {
	if cfg.Rules {
		return kubeconfig(cfg)
	}
	if cfg.Kubeconfig == "" {
		config, err := inCluster()
		if err != nil {
			return nil, fmt.Errorf("find the API server from inside a pod (outside of a cluster name a kubeconfig file): %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return config, nil
}

func newAPIServer(cfg APIConfig, config *rest.Config, log *slog.Logger) (*APIServer, error) {
	a := &APIServer{cfg: cfg, log: log, wake: make(chan struct{}, 1), feeds: make(map[string]*feed), faults: make(map[string][]string),
		unsound: make(map[string]bool), uids: make(map[string]string), early: newEarly(),
		statuses: make(map[model.Origin]*convert.Status), remarks: make(map[model.Origin]report.Remarks)}
	config = rest.CopyConfig(config)
	if u, _, err := rest.DefaultServerUrlFor(config); err == nil {
		a.host = u.Hostname()
	}
	config.UserAgent = cfg.UserAgent
	if cfg.Dial != nil {
		config.Dial = cfg.Dial
	}
	// A few watches need no client-side throttle; the API server has one.
	config.QPS = -1
	a.config = rest.CopyConfig(config)
	var err error
	if a.custom, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if err := a.addBuiltin(config); err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	return a, nil
}

// addBuiltin creates the clients of the built-in groups.
func (a *APIServer) addBuiltin(config *rest.Config) error {
	scheme := runtime.NewScheme()
	for _, k := range convert.BuiltinKinds() {
		if err := k.AddToScheme(scheme); err != nil {
			return err
		}
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	a.builtin = make(map[schema.GroupVersion]rest.Interface)
	for _, k := range convert.BuiltinKinds() {
		gv := k.GroupVersion()
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &gv, "/apis"
		if k.Group == "" {
			c.APIPath = "/api"
		}
		var err error
		if a.builtin[gv], err = rest.RESTClientFor(c); err != nil {
			return err
		}
	}
	a.core = a.builtin[corev1.SchemeGroupVersion]
	return nil
}

// Run implements Source.
func (a *APIServer) Run(ctx context.Context, publish func(*model.Snapshot)) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(a.log.Handler()))
	var running sync.WaitGroup
	defer running.Wait()
	for _, k := range convert.BuiltinKinds() {
		f := a.builtinFeed(k)
		a.addFeed(f)
		running.Go(func() { f.run(ctx) })
	}
	running.Go(func() { a.discover(ctx, &running) })

	c := collector{snapshot: &model.Snapshot{}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		pause := a.cfg.Interval // gather more changes into one snapshot
		if a.hold(time.Now()) {
			pause = max(pause, holdCheck)
			a.notify()
		} else if s, ok := a.collect(&c); ok {
			publish(s)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// holdCheck is how often held changes check whether they may proceed.
const holdCheck = 20 * time.Millisecond

// Host returns the name or address of the API server; empty if unknown.
func (a *APIServer) Host() string { return a.host }

// UserAgent identifies this program to the API server.
func (a *APIServer) UserAgent() string { return a.cfg.UserAgent }

// OnStatus sets a function that is called when the status of a policy, or the findings about one, have
// changed. It must not block.
func (a *APIServer) OnStatus(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.statusChanged = f
}

// Writer returns a client for writing with the credentials for reading.
func (a *APIServer) Writer(qps float32, burst int) (dynamic.Interface, error) {
	config := rest.CopyConfig(a.config)
	config.QPS, config.Burst = qps, burst
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	return client, nil
}

// Problems implements Source.
func (a *APIServer) Problems() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.Clone(a.refusals)
	if !a.discovered {
		out = append(out, "API server: not known yet which kinds of policies it serves")
	}
	for _, f := range a.feeds {
		out = append(out, f.problems()...)
	}
	out = append(out, a.early.problems()...)
	for object, notes := range a.faults {
		for _, n := range notes {
			out = append(out, convert.OneLine(object+": "+n))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Behind implements Source.
func (a *APIServer) Behind() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(a.feeds)) {
		if why := a.feeds[kind].behind(); why != "" {
			return why
		}
	}
	return ""
}

// Refused returns an error about a missing right to read the cluster, for callers that do not wait until it
// is granted. It returns nil if no right is known to be missing.
func (a *APIServer) Refused() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(a.feeds)) {
		f := a.feeds[kind]
		f.mu.Lock()
		err := f.trouble
		if !f.refused || f.optional {
			err = nil
		}
		f.mu.Unlock()
		if err != nil {
			return fmt.Errorf("read %s: %w", kind, err)
		}
	}
	return nil
}

// Unreachable returns the error of a connection that will not succeed by waiting, nil if there is none. Nothing listens, the
// name is not known, the server has no TLS or no valid certificate, or there are no credentials. It is for callers that do
// not wait for a change.
func (a *APIServer) Unreachable() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(a.feeds)) {
		f := a.feeds[kind]
		f.mu.Lock()
		err := f.trouble
		f.mu.Unlock()
		if hopeless(err) {
			return Described(err)
		}
	}
	return nil
}

// Described adds the remedy to an error of a request that will not succeed by waiting, and names the API server instead of
// the request. Other errors stay as they are.
func Described(err error) error {
	if !hopeless(err) {
		return err
	}
	remedy := "check that it runs, and the server in the kubeconfig file"
	if withoutCredentials(err) {
		remedy = "install the command of users[].user.exec in the kubeconfig file, or log in with it"
	}
	at := "API server"
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
		if withoutCredentials(u) { // client-go may add lines about the command
			err = errors.New(strings.Join(strings.Fields(err.Error()), " "))
		}
		if to, parseErr := url.Parse(u.URL); parseErr == nil {
			at = to.Scheme + "://" + to.Host
		}
	}
	return fmt.Errorf("%s: %w: %s", at, err, remedy)
}

func hopeless(err error) bool {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var plain tls.RecordHeaderError // no TLS
	return utilnet.IsConnectionRefused(err) || errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &certificate) ||
		errors.As(err, &plain) || errors.Is(err, http.ErrSchemeMismatch) || withoutCredentials(err)
}

// withoutCredentials reports whether the command that a kubeconfig file names for credentials failed. client-go has no type for
// that error.
func withoutCredentials(err error) bool {
	u, ok := errors.AsType[*url.Error](err)
	return ok && strings.HasPrefix(u.Err.Error(), "getting credentials: ")
}

// lost records that a kind cannot be read.
func (a *APIServer) lost() {
	a.away.Store(true)
	a.notify()
}

func (a *APIServer) notify() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *APIServer) addFeed(f *feed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.feeds[f.kind.Name] = f
}

// builtinFeed watches a kind of a built-in group. The client must not retry by itself, because it would
// hide the error for many seconds: the reflector retries.
func (a *APIServer) builtinFeed(k convert.Kind) *feed {
	get := func(opts metav1.ListOptions) *rest.Request {
		return a.builtin[k.GroupVersion()].Get().MaxRetries(0).Resource(k.Resource).VersionedParams(&opts, metav1.ParameterCodec)
	}
	return &feed{
		kind: k, object: k.Typed, notify: a.notify, lost: a.lost, cfg: a.cfg, log: a.log,
		optional: slices.Contains(a.cfg.Optional, k.Name),
		list: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return get(opts).Do(ctx).Get()
		},
		watch: func(ctx context.Context, opts metav1.ListOptions) (watcher, error) {
			opts.Watch = true
			return get(opts).Watch(ctx)
		},
	}
}
