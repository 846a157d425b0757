// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/isthmus-net/isthmus/common/agent/dirlock"
)

// locks are what this agent holds.
type locks []io.Closer

// held is a directory that this agent holds.
type held struct{ *dirlock.Lock }

// Close implements io.Closer.
func (h held) Close() error { return h.Release() }

// lock locks directories and what else only one agent may use, all or none. Two agents that write the same records or maps would undo each
// other's work. It waits for an agent that is stopping.
func (o *options) lock(ctx context.Context, b opener, dirs []string, log *slog.Logger) (locks, error) {
	var all locks
	for _, dir := range dirs {
		l, err := dirlock.Take(ctx, dir, o.lockTimeout, func(holder string) {
			log.Warn("waiting for another agent that uses the same directory", "directory", dir, "holder", holder, "timeout", o.lockTimeout)
		})
		if err != nil {
			all.release()
			if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: run the agent as root; on Linux --bpffs must be on a bpffs: run 'mount -t bpf -o mode=700 bpf /sys/fs/bpf'", err)
			}
			return nil, err
		}
		all = append(all, held{l})
	}
	if b.reserve == nil {
		return all, nil
	}
	reserved, err := b.reserve()
	if err != nil {
		all.release()
		return nil, err
	}
	return append(all, reserved), nil
}

func (l locks) release() {
	for _, one := range l {
		_ = one.Close() // the end of the process does so anyway
	}
}

// recordDir returns the directory of the endpoint records.
func (o *options) recordDir() string { return filepath.Join(o.stateDir, "endpoints") }

// existing returns those of the directories that exist.
func existing(dirs []string) []string {
	return slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}
