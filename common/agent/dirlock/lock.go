// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Lock is a directory that this process holds.
type Lock struct{ file *os.File }

// errHeld is what a system's tryLock returns while another process has the lock.
var errHeld = errors.New("is in use")

// retry is how often a lock that another process holds is tried again.
const retry = 50 * time.Millisecond

// Take makes the directory if it is missing, closes it to other users, and locks
// it. While another process holds the lock it calls waiting once, with what is
// known of the holder, and tries again until patience is over: an agent that was
// told to stop takes a moment. The error then names directory and holder. An
// agent on the way out that removes the directory leaves the next one a new one.
func Take(ctx context.Context, dir string, patience time.Duration, waiting func(holder string)) (*Lock, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("lock directory %q: the path must be absolute", dir)
	}
	deadline := time.Now().Add(patience)
	for told := false; ; told = true {
		l, err := try(dir)
		if err == nil || !errors.Is(err, errHeld) {
			return l, err
		}
		if !time.Now().Before(deadline) {
			return nil, fmt.Errorf("lock directory %s: %s has it for more than %s: stop that agent, or give this one directories of its own", dir, holder(dir), patience)
		}
		if !told {
			waiting(holder(dir))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock directory %s: %w", dir, ctx.Err())
		case <-time.After(retry):
		}
	}
}

// try locks a directory that exists when it is locked.
func try(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock directory %s: create it: %w", dir, err)
	}
	if err := closeToOthers(dir); err != nil {
		return nil, fmt.Errorf("lock directory %s: close it to other users: %w", dir, err)
	}
	f, err := tryLock(dir)
	if err != nil {
		return nil, fmt.Errorf("lock directory %s: %w", dir, err)
	}
	return &Lock{f}, nil
}

// Release gives the directory back. The end of the process does so too.
func (l *Lock) Release() error { return l.file.Close() }
