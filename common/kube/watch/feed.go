// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

type watcher = watch.Interface

// feed watches one kind of object and gathers the changes until they are collected. It is the store of its
// own reflector and holds only the changes; the snapshot holds the known objects.
type feed struct {
	kind   convert.Kind
	object runtime.Object
	list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, metav1.ListOptions) (watcher, error)
	notify func()
	lost   func() // called when the kind cannot be read
	cfg    APIConfig
	log    *slog.Logger
	// version, absent and stop belong to discovery. version is the watched version. absent counts how many
	// times in a row the kind was not served. stop ends the feed. They are zero for the built-in kinds, and
	// stop is nil after the feed has ended.
	version string
	absent  int
	stop    context.CancelFunc

	mu      sync.Mutex
	changes map[string]*convert.Record // by key
	// complete is true if changes holds all objects; missing ones were deleted.
	complete bool
	// synced is true once the first complete list has arrived.
	synced bool
	// retired is true if the kind is no longer served; the feed then ignores objects.
	retired bool
	// trouble is why the API server cannot be read, or nil.
	trouble error
	refused bool // waiting does not help
	// optional is true if the kind is left out if it may not be read.
	optional bool
	// live is true while a watch is open and has delivered earlier events. streams is true while the
	// initial events are incomplete; a Replace ends them.
	live, streams bool
	diedAt        time.Time // when it was live last
	// watches numbers the watches.
	watches int
	// interrupted is true after a watch has ended early or could not be opened: the API server may be another one by then.
	interrupted bool
}

var _ cache.TransformingStore = (*feed)(nil)

// run watches until ctx is done.
func (f *feed) run(ctx context.Context) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
			defer cancel()
			if opts.ResourceVersion == "0" {
				// With "any version" the server would send everything in one response, however large.
				opts.ResourceVersion = ""
			}
			page, err := f.list(ctx, opts)
			if f.report(ctx, "list", err); err != nil {
				return nil, err
			}
			return f.trim(page)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := f.resume(ctx, opts)
			if err != nil {
				f.report(ctx, "watch", err)
			}
			return w, err
		},
	}
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(lw, f.object, f, cache.ReflectorOptions{Name: f.kind.Name, TypeDescription: f.kind.Name, Logger: &logger,
		Backoff: &wait.Backoff{Duration: min(200*time.Millisecond, f.cfg.Backoff), Cap: f.cfg.Backoff, Steps: 100, Factor: 2, Jitter: 0.5}})
	r.WatchListPageSize = f.cfg.PageSize
	r.RunWithContext(ctx)
}

// resume opens a watch.
func (f *feed) resume(ctx context.Context, opts metav1.ListOptions) (watcher, error) {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	f.mu.Lock()
	interrupted := f.interrupted
	f.mu.Unlock()
	if interrupted && !initial {
		if err := f.continues(ctx, opts.ResourceVersion); err != nil {
			return nil, err
		}
	}
	var ends time.Time
	if opts.TimeoutSeconds != nil {
		ends = time.Now().Add(time.Duration(*opts.TimeoutSeconds) * time.Second)
	}
	w, err := f.watch(ctx, opts)
	if err != nil {
		f.interrupt() // the next attempt may reach another API server than the one asked above
		return nil, err
	}
	return f.opened(ctx, w, initial, ends), nil
}

// continues returns an error of the kind Expired if the API server has not reached a known resource version: it was restored
// from a backup. Asked for changes since that version it would send none until its own versions have reached it.
func (f *feed) continues(ctx context.Context, known string) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	page, err := f.list(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	at, err := meta.ListAccessor(page)
	if err != nil {
		return fmt.Errorf("read list of %s: %w", f.kind.Name, err)
	}
	// Without an order of versions the server must report unknown ones itself.
	if order, err := resourceversion.CompareResourceVersion(at.GetResourceVersion(), known); err == nil && order < 0 {
		f.log.Warn("the API server has an earlier state than before, as after a restored backup: reading all objects again",
			"kind", f.kind.Name, "version", at.GetResourceVersion(), "known", known)
		return apierrors.NewResourceExpired(fmt.Sprintf("resource version %s is later than %s of the API server", known, at.GetResourceVersion()))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupted = false
	return nil
}

// interrupt records that the next watch must not trust the known resource version.
func (f *feed) interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupted = true
}

// watchProbation is how long a watch must be open before it counts as live. The client reports a connection
// that closes at once, or that times out, as a watch that has ended.
const watchProbation = time.Second

// openWatch is a watch on probation.
type openWatch struct {
	watcher
	feed    *feed
	ctx     context.Context
	number  int
	believe *time.Timer
	ends    time.Time
}

// opened records that a watch is open. streams reports whether it begins with all existing objects. The API server ends it at the
// given time or later, unless it fails.
func (f *feed) opened(ctx context.Context, w watcher, streams bool, ends time.Time) watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams = streams
	f.watches++
	number := f.watches
	return openWatch{w, f, ctx, number, time.AfterFunc(watchProbation, func() {
		f.report(ctx, "watch", nil)
		if !streams {
			f.setLive(number, true)
		}
	}), ends}
}

// Stop implements watch.Interface.
func (w openWatch) Stop() {
	if w.believe.Stop() {
		w.feed.report(w.ctx, "watch", errors.New("the connection cannot be made, or ends at once"))
	}
	w.feed.setLive(w.number, false)
	if time.Now().Before(w.ends) {
		w.feed.interrupt()
	}
	w.watcher.Stop()
}

// setLive records that a watch counts as live or has ended, unless a later one was opened.
func (f *feed) setLive(number int, live bool) {
	f.mu.Lock()
	if number == f.watches {
		if f.live && !live {
			f.diedAt = time.Now()
		}
		f.live = live
		if !live {
			f.watches++ // the watch is no longer live
		}
	}
	f.mu.Unlock()
	f.notify()
}

// report records whether the API server can be read.
func (f *feed) report(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	switch {
	case apierrors.IsUnauthorized(err):
		err = fmt.Errorf("%w: the API server does not accept the credentials of this program: renew them", err)
	case refused:
		err = fmt.Errorf("%w: grant this program's account the right to list and watch it", err)
	case apierrors.IsInvalid(err), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		err = nil // the reflector falls back to a list at once
	}
	if err != nil {
		f.lost()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retired {
		return
	}
	if err != nil && f.trouble == nil {
		f.log.Warn("cannot read the API server, the last known state stays in force", "kind", f.kind.Name, "verb", verb, "error", err)
	}
	f.note(err, refused)
	if refused && f.optional && !f.synced {
		f.changes, f.complete, f.synced = nil, true, true
		f.notify()
	}
}

// note stores why the kind cannot be read, or that it can. The caller holds the lock.
func (f *feed) note(trouble error, refused bool) {
	if trouble == nil && f.trouble != nil {
		f.log.Info("API server can be read again", "kind", f.kind.Name)
	}
	f.trouble, f.refused = trouble, refused
}

// problems returns why the feed is not up to date.
func (f *feed) problems() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	if f.optional && f.refused {
		return []string{convert.OneLine(fmt.Sprintf("API server: %s is left out: %v", f.kind.Name, f.trouble))}
	}
	if f.trouble != nil {
		out = append(out, convert.OneLine(fmt.Sprintf("API server: %s: %v; the last known state stays in force", f.kind.Name, f.trouble)))
	}
	if !f.synced {
		out = append(out, fmt.Sprintf("API server: %s: the first list has not arrived yet", f.kind.Name))
	}
	return out
}

// behind returns why the known objects may be out of date, or "".
func (f *feed) behind() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.trouble != nil:
		return convert.OneLine(fmt.Sprintf("API server: %s: %v", f.kind.Name, f.trouble))
	case !f.synced:
		return fmt.Sprintf("API server: %s: the first list has not arrived yet", f.kind.Name)
	case !f.live && !f.diedAt.IsZero() && time.Since(f.diedAt) > 2*watchProbation:
		return fmt.Sprintf("API server: %s: no changes arrive since %s", f.kind.Name, f.diedAt.UTC().Format(time.RFC3339))
	}
	return ""
}

// trim converts a page of a list on arrival, so that at most one page of whole objects is in memory.
func (f *feed) trim(page runtime.Object) (runtime.Object, error) {
	from, err := meta.ListAccessor(page)
	if err != nil {
		return nil, fmt.Errorf("read list of %s: %w", f.kind.Name, err)
	}
	to := &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: from.GetResourceVersion(), Continue: from.GetContinue(),
		RemainingItemCount: from.GetRemainingItemCount()}}
	err = meta.EachListItem(page, func(o runtime.Object) error {
		to.Items = append(to.Items, f.record(o))
		return nil
	})
	return to, err
}

// record converts an object, unless it is converted already.
func (f *feed) record(o any) *convert.Record {
	switch o := o.(type) {
	case *convert.Record:
		return o
	case runtime.Object:
		return f.kind.Record(o)
	}
	return nil
}

// Transformer implements cache.TransformingStore.
func (f *feed) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return f.record(o), nil }
}

// Add implements cache.ReflectorStore.
func (f *feed) Add(o any) error { return f.change(f.record(o)) }

// Update implements cache.ReflectorStore.
func (f *feed) Update(o any) error { return f.change(f.record(o)) }

// Delete implements cache.ReflectorStore.
func (f *feed) Delete(o any) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return fmt.Errorf("read deleted %s: %w", f.kind.Name, err)
	}
	return f.change(&convert.Record{Namespace: m.GetNamespace(), Name: m.GetName()})
}

func (f *feed) change(r *convert.Record) error {
	if r == nil {
		return fmt.Errorf("read %s: not an object", f.kind.Name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retired {
		return nil
	}
	if f.changes == nil {
		f.changes = make(map[string]*convert.Record)
	}
	f.changes[r.Key()] = r
	f.notify()
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *feed) Replace(list []any, _ string) error {
	changes := make(map[string]*convert.Record, len(list))
	for _, o := range list {
		if r := f.record(o); r != nil {
			changes[r.Key()] = r
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retired {
		return nil
	}
	f.changes, f.complete, f.synced, f.interrupted = changes, true, true, false
	if f.streams {
		f.live, f.streams = true, false
		f.note(nil, false) // a complete list needs no probation
	}
	f.notify()
	return nil
}

// retire ends the feed and drops the objects of its kind.
func (f *feed) retire() {
	f.stop()
	f.stop = nil
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes, f.complete, f.synced, f.retired, f.trouble = nil, true, true, true, nil
	f.notify()
}

// waiting reports whether changes exist, and whether more changes of the past may arrive.
func (f *feed) waiting() (changes, incomplete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.changes) > 0 || f.complete, !f.live && !f.retired
}

// Resync implements cache.ReflectorStore.
func (f *feed) Resync() error { return nil }

// take returns the gathered changes. Before the first complete list it returns none.
func (f *feed) take() (changes map[string]*convert.Record, complete, synced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return nil, false, false
	}
	changes, complete = f.changes, f.complete
	f.changes, f.complete = nil, false
	return changes, complete, true
}
