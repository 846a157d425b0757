// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// waiting is how often the Keeper checks whether the agent is ready. keeping is how often it checks the
	// files.
	waiting = 100 * time.Millisecond
	keeping = 10 * time.Second
)

// Keeper keeps the files in place while an agent runs.
type Keeper struct {
	cfg      Config
	log      *slog.Logger
	problems atomic.Pointer[[]string]
}

// NewKeeper validates the Config and returns a Keeper that Run starts.
func NewKeeper(cfg Config, log *slog.Logger) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Keeper{cfg: cfg, log: log}, nil
}

// Run writes the plugin, waits until ready returns true for the first time, and writes the configuration.
// It then repairs changes by other processes. Errors are reported as problems, and it retries. When the
// context is done it leaves the files in place.
func (k *Keeper) Run(ctx context.Context, ready func() bool) error {
	announced := false
	w := newWatcher(k.cfg)
	defer w.close()
	for {
		announced = announced || ready()
		w.add()
		k.sync(announced)
		pause := keeping
		if !announced {
			pause = waiting
		}
		if !w.wait(ctx, pause) {
			return nil
		}
	}
}

// sync writes the files once.
func (k *Keeper) sync(announce bool) {
	var problems []string
	note := func(err error) {
		if err != nil {
			problems = append(problems, strings.Split(err.Error(), "\n")...)
		}
	}
	wrote, err := k.cfg.WritePlugin()
	note(err)
	if wrote {
		k.log.Info("CNI plugin is installed", "path", k.cfg.installed())
	}
	switch {
	case !announce || err != nil:
	case k.cfg.Chained:
		name, wrote, err := k.cfg.Chain()
		note(err)
		if wrote {
			k.log.Info("CNI plugin is chained", "configuration", name)
		}
	default:
		wrote, err = k.cfg.WriteConf()
		note(err)
		if wrote {
			k.log.Info("CNI configuration is installed", "path", k.cfg.conf())
		}
	}
	if !k.cfg.Chained {
		others, err := k.cfg.Others()
		note(err)
		if len(others) > 0 {
			note(fmt.Errorf("CNI configuration of another network precedes %s in %s, so isthmus does not attach pods: remove %s", ConfName, k.cfg.ConfDir, strings.Join(others, ", ")))
		}
	}
	for _, path := range []string{k.cfg.BinDir, k.cfg.ConfDir, k.cfg.installed()} {
		note(checkAccess(path))
	}
	k.problems.Store(&problems)
}

// Problems returns the current problems. It is safe for concurrent use.
func (k *Keeper) Problems() []string {
	if p := k.problems.Load(); p != nil {
		return *p
	}
	return nil
}
