// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/isthmus-net/isthmus/common/agent/dirlock"
)

// locks are the directories that this agent holds.
type locks []*dirlock.Lock

// lock locks directories, all or none. Two agents that write the same records or maps would undo each
// other's work. It waits for an agent that is stopping.
func (o *options) lock(ctx context.Context, dirs []string, log *slog.Logger) (locks, error) {
	var all locks
	for _, dir := range dirs {
		l, err := dirlock.Take(ctx, dir, o.lockTimeout, func(holder string) {
			log.Warn("waiting for another agent that uses the same directory", "directory", dir, "holder", holder, "timeout", o.lockTimeout)
		})
		if err != nil {
			all.release()
			if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: run the agent as root; on Linux --bpffs must be on a bpffs: run 'mount -t bpf bpf /sys/fs/bpf'", err)
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (l locks) release() {
	for _, one := range l {
		_ = one.Release() // the end of the process does so anyway
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
