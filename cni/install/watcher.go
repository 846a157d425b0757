// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

// noticing is the pause between a change in the directory of configurations and its check. It bounds how often
// two programs that undo each other's changes write.
const noticing = 200 * time.Millisecond

// watcher waits for changes of the configurations that other networks write. Without support of the system it
// only waits: the Keeper checks the files regularly, too.
type watcher struct {
	dir string
	// fs is nil unless the configurations belong to another network.
	fs *fsnotify.Watcher
}

func newWatcher(c Config) *watcher {
	w := &watcher{dir: c.ConfDir}
	if c.Chained {
		w.fs, _ = fsnotify.NewWatcher()
	}
	return w
}

// add watches the directory, if it exists. A directory that was replaced is watched again.
func (w *watcher) add() {
	if w.fs != nil {
		_ = w.fs.Add(w.dir)
	}
}

// wait returns after a change and a short pause, or after a time. It returns false if the context is done.
func (w *watcher) wait(ctx context.Context, most time.Duration) bool {
	var changes chan fsnotify.Event
	var errs chan error
	if w.fs != nil {
		changes, errs = w.fs.Events, w.fs.Errors
	}
	end := time.After(most)
	for paused := false; ; {
		select {
		case <-ctx.Done():
			return false
		case <-end:
			return true
		case <-errs: // an overflow: something changed
		case <-changes:
		}
		if !paused {
			paused, end = true, time.After(min(noticing, most))
		}
	}
}

func (w *watcher) close() {
	if w.fs != nil {
		_ = w.fs.Close()
	}
}
