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

// errHeld is the error of try while another process holds the lock, or has just removed the directory.
var errHeld = errors.New("is in use")

// retry is the interval between attempts to take a lock that another process holds.
const retry = 50 * time.Millisecond

// Take creates the directory if it is missing, restricts it to its owner, and locks it. While another
// process holds the lock it calls waiting once, with what is known about the holder. It retries until
// patience is over, since a stopping agent takes a moment to exit. The error then names directory and
// holder. If a stopping agent removes the directory, Take creates a new one.
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
			return nil, fmt.Errorf("lock directory %s: %s has held it for more than %s: stop that agent, or give this one separate directories", dir, holder(dir), patience)
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

// try creates the directory if it is missing and tries to lock it.
func try(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock directory %s: create it: %w", dir, err)
	}
	err := closeToOthers(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errHeld
	}
	if err != nil {
		return nil, fmt.Errorf("lock directory %s: restrict it to its owner: %w", dir, err)
	}
	f, err := tryLock(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errHeld
	}
	if err != nil {
		return nil, fmt.Errorf("lock directory %s: %w", dir, err)
	}
	return &Lock{f}, nil
}

// Release unlocks the directory. The end of the process does so too.
func (l *Lock) Release() error { return l.file.Close() }
