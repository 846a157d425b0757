// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

type watcher = watch.Interface

// record is what is kept of an object of the API server from the moment it
// arrives: its name and the noun of package model that it was converted to.
type record struct {
	namespace, name string
	// value is a *model.Namespace, *model.Node, *model.Pod, *model.Policy or
	// *model.DenyList; nil if the object is gone or says nothing that can be used.
	value any
	// notes are remarks on the object, for people.
	notes []string
	// bad: the object is not valid, and value is only what can be enforced
	// safely when nothing better is known.
	bad bool
	// enforced says what value makes of an object that is not valid.
	enforced string
	// written is what the object's status says, for kinds that have one.
	written *writtenStatus
}

func (r *record) key() string { return r.namespace + "/" + r.name }

// GetObjectMeta makes a record acceptable to the caches of client-go.
func (r *record) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.namespace, Name: r.name}
}

// GetObjectKind makes a record acceptable as an item of a list.
func (r *record) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the record itself: it is never modified.
func (r *record) DeepCopyObject() runtime.Object { return r }

// feed watches one kind of object and gathers the changes until they are
// collected. It is the store of its own reflector, so nothing but the changes
// is held here; what is known is in the snapshot.
type feed struct {
	kind    string
	object  runtime.Object
	convert func(runtime.Object) *record
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watcher, error)
	notify  func()
	lost    func() // called when the kind cannot be read
	cfg     APIConfig
	log     *slog.Logger
	// version, absent and stop belong to discovery: the version that is watched,
	// how many times in a row the kind was found not to be served, and what ends
	// the feed. They are zero for the built-in kinds, and stop is nil after the
	// feed has ended.
	version string
	absent  int
	stop    context.CancelFunc

	mu      sync.Mutex
	changes map[string]*record // by key
	// complete: changes holds all there is; what it lacks is gone.
	complete bool
	// synced: the first complete list has arrived.
	synced bool
	// retired: the kind is served no longer, and nothing more is taken.
	retired bool
	// trouble is why the API server cannot be read; nil while it can.
	trouble error
	refused bool // waiting does not help
	// live: a watch is open, and what happened before has arrived. streams: it
	// has not, and ends with a Replace.
	live, streams bool
	diedAt        time.Time // when it was live last
	// watches numbers the watches.
	watches int
}

var _ cache.TransformingStore = (*feed)(nil)

// run watches until ctx is done.
func (f *feed) run(ctx context.Context) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
			defer cancel()
			if opts.ResourceVersion == "0" {
				// "Any version" would be answered in one piece, however large.
				opts.ResourceVersion = ""
			}
			page, err := f.list(ctx, opts)
			if f.report(ctx, "list", err); err != nil {
				return nil, err
			}
			return f.trim(page)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := f.watch(ctx, opts)
			if err != nil {
				f.report(ctx, "watch", err)
				return nil, err
			}
			return f.opened(ctx, w, opts.SendInitialEvents != nil && *opts.SendInitialEvents), nil
		},
	}
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(lw, f.object, f, cache.ReflectorOptions{Name: f.kind, TypeDescription: f.kind, Logger: &logger,
		Backoff: &wait.Backoff{Duration: min(200*time.Millisecond, f.cfg.Backoff), Cap: f.cfg.Backoff, Steps: 100, Factor: 2, Jitter: 0.5}})
	r.WatchListPageSize = f.cfg.PageSize
	r.RunWithContext(ctx)
}

// settled is how long a watch must be open before it is believed: the client
// takes a connection that is closed at once, and one that cannot be made in
// time, for a watch that has ended.
const settled = time.Second

// openWatch is a watch that is not believed at first.
type openWatch struct {
	watcher
	feed    *feed
	ctx     context.Context
	number  int
	believe *time.Timer
}

// opened notes that a watch is open. streams tells that it begins with all
// there is.
func (f *feed) opened(ctx context.Context, w watcher, streams bool) watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams = streams
	f.watches++
	number := f.watches
	return openWatch{w, f, ctx, number, time.AfterFunc(settled, func() {
		f.report(ctx, "watch", nil)
		if !streams {
			f.setLive(number, true)
		}
	})}
}

// Stop implements watch.Interface.
func (w openWatch) Stop() {
	if w.believe.Stop() {
		w.feed.report(w.ctx, "watch", errors.New("the connection cannot be made, or ends at once"))
	}
	w.feed.setLive(w.number, false)
	w.watcher.Stop()
}

// setLive notes that a watch is believed or has ended, unless a later one has
// been opened.
func (f *feed) setLive(number int, live bool) {
	f.mu.Lock()
	if number == f.watches {
		if f.live && !live {
			f.diedAt = time.Now()
		}
		f.live = live
		if !live {
			f.watches++ // believed no more
		}
	}
	f.mu.Unlock()
	f.notify()
}

// report notes whether the API server can be read.
func (f *feed) report(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	switch {
	case refused:
		err = fmt.Errorf("%w: give this program's account the right to list and watch it", err)
	case apierrors.IsInvalid(err), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		err = nil // the reflector tries in another way at once
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
		f.log.Warn("API server cannot be read, the last known state stays in force", "kind", f.kind, "verb", verb, "err", err)
	}
	f.note(err, refused)
}

// note keeps why the kind cannot be read, or that it can. The caller holds the lock.
func (f *feed) note(trouble error, refused bool) {
	if trouble == nil && f.trouble != nil {
		f.log.Info("API server can be read again", "kind", f.kind)
	}
	f.trouble, f.refused = trouble, refused
}

// problems says why the feed is not up to date.
func (f *feed) problems() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	if f.trouble != nil {
		out = append(out, oneLine(fmt.Sprintf("API server: %s: %v; the last known state stays in force", f.kind, f.trouble)))
	}
	if !f.synced {
		out = append(out, fmt.Sprintf("API server: %s: the first list has not arrived yet", f.kind))
	}
	return out
}

// behind says why what is known may be out of date; empty if it is not.
func (f *feed) behind() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.trouble != nil:
		return oneLine(fmt.Sprintf("API server: %s: %v", f.kind, f.trouble))
	case !f.synced:
		return fmt.Sprintf("API server: %s: the first list has not arrived yet", f.kind)
	case !f.live && !f.diedAt.IsZero() && time.Since(f.diedAt) > 2*settled:
		return fmt.Sprintf("API server: %s: changes do not arrive since %s", f.kind, f.diedAt.UTC().Format(time.RFC3339))
	}
	return ""
}

// trim converts a page of a list on arrival, so that no more than a page of
// whole objects is ever in memory.
func (f *feed) trim(page runtime.Object) (runtime.Object, error) {
	from, err := meta.ListAccessor(page)
	if err != nil {
		return nil, fmt.Errorf("read list of %s: %w", f.kind, err)
	}
	to := &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: from.GetResourceVersion(), Continue: from.GetContinue(),
		RemainingItemCount: from.GetRemainingItemCount()}}
	err = meta.EachListItem(page, func(o runtime.Object) error {
		to.Items = append(to.Items, f.record(o))
		return nil
	})
	return to, err
}

// record converts an object, unless it was converted before.
func (f *feed) record(o any) *record {
	switch o := o.(type) {
	case *record:
		return o
	case runtime.Object:
		return f.convert(o)
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
		return fmt.Errorf("read deleted %s: %w", f.kind, err)
	}
	return f.change(&record{namespace: m.GetNamespace(), name: m.GetName()})
}

func (f *feed) change(r *record) error {
	if r == nil {
		return fmt.Errorf("read %s: not an object", f.kind)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retired {
		return nil
	}
	if f.changes == nil {
		f.changes = make(map[string]*record)
	}
	f.changes[r.key()] = r
	f.notify()
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *feed) Replace(list []any, _ string) error {
	changes := make(map[string]*record, len(list))
	for _, o := range list {
		if r := f.record(o); r != nil {
			changes[r.key()] = r
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retired {
		return nil
	}
	f.changes, f.complete, f.synced = changes, true, true
	if f.streams {
		f.live, f.streams = true, false
		f.note(nil, false) // what has brought all there is needs no time to be believed
	}
	f.notify()
	return nil
}

// retire ends the feed: whatever of its kind was known is gone.
func (f *feed) retire() {
	f.stop()
	f.stop = nil
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes, f.complete, f.synced, f.retired, f.trouble = nil, true, true, true, nil
	f.notify()
}

// waiting tells whether there are changes, and whether more may come of what
// has happened already.
func (f *feed) waiting() (changes, incomplete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.changes) > 0 || f.complete, !f.live && !f.retired
}

// Resync implements cache.ReflectorStore.
func (f *feed) Resync() error { return nil }

// take hands over what has gathered. Before the first complete list there is
// nothing to hand over.
func (f *feed) take() (changes map[string]*record, complete, synced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return nil, false, false
	}
	changes, complete = f.changes, f.complete
	f.changes, f.complete = nil, false
	return changes, complete, true
}
