// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
)

// DirectoryConfig configures a Directory.
type DirectoryConfig struct {
	Path   string
	Limits Limits
	// Debounce is how long the directory must be quiet before it is read: a writer of several files needs a
	// moment.
	Debounce time.Duration
	// MaxDelay bounds how long a busy writer can delay reading.
	MaxDelay time.Duration
	// Rescan is how often the directory is read without an event: some file systems and the targets of
	// links send none.
	Rescan time.Duration
}

// DefaultDirectoryConfig returns the defaults for a path.
func DefaultDirectoryConfig(path string) DirectoryConfig {
	return DirectoryConfig{Path: path, Limits: DefaultLimits(), Debounce: 100 * time.Millisecond, MaxDelay: 2 * time.Second,
		Rescan: 30 * time.Second}
}

// Validate reports everything that is wrong with the DirectoryConfig.
func (c DirectoryConfig) Validate() error {
	errs := []error{c.Limits.Validate()}
	if c.Path == "" {
		errs = append(errs, errors.New("directory of manifests: name a path"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Debounce", c.Debounce}, {"MaxDelay", c.MaxDelay}, {"Rescan", c.Rescan}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("directory of manifests: %s: %s: must be greater than 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Directory is a Source that watches a directory of manifests. While any document is bad it publishes
// nothing: half a set of policies may allow traffic that the whole set denies.
type Directory struct {
	cfg DirectoryConfig
	log *slog.Logger

	mu       sync.Mutex
	problems []string

	// Only Run uses the fields below.
	watcher   *fsnotify.Watcher // nil if the system provides none
	watched   map[string]bool
	found     bool     // the directory could be read last time
	last      [32]byte // digest of the tree that was published last
	published *model.Snapshot
}

var _ kube.Source = (*Directory)(nil)

// NewDirectory prepares a Directory; it reads nothing yet.
func NewDirectory(cfg DirectoryConfig, log *slog.Logger) (*Directory, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Directory{cfg: cfg, log: log, watched: make(map[string]bool), problems: []string{"manifests: not read yet"}}, nil
}

// Problems implements Source.
func (d *Directory) Problems() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.problems)
}

// Behind implements Source.
func (d *Directory) Behind() string {
	for _, p := range d.Problems() {
		if !strings.HasPrefix(p, "warning: ") {
			return p
		}
	}
	return ""
}

func (d *Directory) setProblems(problems []string) {
	slices.Sort(problems)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problems = slices.Compact(problems)
}

// Run implements Source.
func (d *Directory) Run(ctx context.Context, publish func(*model.Snapshot)) error {
	var err error
	if d.watcher, err = fsnotify.NewWatcher(); err != nil {
		d.log.Warn("cannot watch the directory of manifests, polling it", "every", d.cfg.Rescan, "error", err)
		d.watcher = nil
	} else {
		defer d.watcher.Close()
	}
	for {
		d.readStable(ctx, publish)
		rescan := d.cfg.Rescan
		if !d.found {
			rescan = min(rescan, missingRescan)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rescan):
		case <-d.events():
			d.waitQuiet(ctx)
		case err := <-d.errors():
			d.log.Warn("events of changed manifests may be lost, reading all again", "error", err)
		}
	}
}

// missingRescan is how often a missing directory is looked for.
const missingRescan = time.Second

// readStable reads the directory until two consecutive readings are equal. No change event may arrive
// between the start of the second reading and its end. The result then existed at one moment, even if a
// writer replaces all files at once.
func (d *Directory) readStable(ctx context.Context, publish func(*model.Snapshot)) {
	var before *tree
	for attempt := 1; ctx.Err() == nil; attempt++ {
		t := readTree(ctx, d.cfg.Path, d.cfg.Limits)
		if ctx.Err() != nil {
			return
		}
		d.found = len(t.dirs) > 0
		added := d.watch(t.dirs)
		switch {
		case added:
		case t.digest == d.last:
			return
		case before != nil && before.digest == t.digest:
			d.take(t, publish)
			return
		case before != nil:
			if attempt == hurried {
				d.log.Warn("manifests change faster than they can be read, the last good state stays in force")
				d.setProblems(append(d.Problems(), "manifests: they change faster than they can be read; the last good state stays in force"))
			}
			d.waitQuiet(ctx)
		}
		before = t
	}
}

// hurried is the number of differing readings after which a problem is reported.
const hurried = 20

func (d *Directory) events() <-chan fsnotify.Event {
	if d.watcher == nil {
		return nil
	}
	return d.watcher.Events
}

func (d *Directory) errors() <-chan error {
	if d.watcher == nil {
		return nil
	}
	return d.watcher.Errors
}

// waitQuiet waits until the directory has been quiet for a while.
func (d *Directory) waitQuiet(ctx context.Context) {
	deadline := time.NewTimer(d.cfg.MaxDelay)
	defer deadline.Stop()
	for {
		select {
		case <-d.events():
		case <-d.errors():
		case <-time.After(d.cfg.Debounce):
			return
		case <-deadline.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// take publishes a tree if it is valid and has changed.
func (d *Directory) take(t *tree, publish func(*model.Snapshot)) {
	if t.digest == d.last {
		return
	}
	d.last = t.digest
	l := t.load(Reading{Limits: d.cfg.Limits})
	objects, warnings, errs := l.finish()
	errs = append(t.errors, errs...)
	for _, kind := range slices.Sorted(maps.Keys(l.ignored)) {
		d.log.Debug("objects of other kinds", "kind", kind, "count", l.ignored[kind])
	}
	var problems []string
	for _, w := range warnings {
		d.log.Warn("manifest", "warning", w.String())
		problems = append(problems, "warning: "+w.String())
	}
	for _, e := range errs {
		if d.published == nil {
			d.log.Error("bad manifest, and no good state is known yet, without which pods are not attached", "error", e)
		} else {
			d.log.Error("bad manifest, the last good state stays in force", "error", e)
		}
		problems = append(problems, e.Error())
	}
	d.setProblems(problems)
	if len(errs) > 0 {
		return
	}
	next := objects.Snapshot()
	if d.published != nil {
		changed := false
		if next, changed = convert.ReplaceSnapshot(d.published, next); !changed {
			return
		}
	}
	d.published = next
	d.log.Info("manifests read", "files", len(t.files), "pods", next.Pods.Len(), "nodes", next.Nodes.Len(), "policies", next.Policies.Len())
	publish(next)
}

// watch follows exactly the given directories. It reports whether any of them was not watched before: a
// change between reading and watching would be lost.
func (d *Directory) watch(dirs []string) (added bool) {
	if d.watcher == nil {
		return false
	}
	current := make(map[string]bool)
	for _, name := range d.watcher.WatchList() {
		current[name] = true // the system drops deleted directories
	}
	for _, dir := range dirs {
		if current[dir] {
			continue
		}
		if err := d.watcher.Add(dir); err != nil {
			if !d.watched[dir] {
				d.log.Warn("cannot watch a directory of manifests, polling it", "dir", dir, "every", d.cfg.Rescan, "error", err)
			}
			d.watched[dir] = true
			continue
		}
		d.watched[dir] = true
		added = true
	}
	for dir := range d.watched {
		if !slices.Contains(dirs, dir) {
			_ = d.watcher.Remove(dir) // it may be deleted already
			delete(d.watched, dir)
		}
	}
	return added
}
