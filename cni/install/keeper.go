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
	// waiting is how often it is asked whether the agent is ready, keeping how
	// often the files are looked after.
	waiting = 100 * time.Millisecond
	keeping = 10 * time.Second
)

// Keeper keeps the files in place while an agent runs.
type Keeper struct {
	cfg      Config
	log      *slog.Logger
	problems atomic.Pointer[[]string]
}

// NewKeeper checks the Config and makes a Keeper; Run sets it to work.
func NewKeeper(cfg Config, log *slog.Logger) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Keeper{cfg: cfg, log: log}, nil
}

// Run writes the plugin, waits until ready says so for the first time, writes
// the configuration, and then repairs what others change. Trouble is reported
// as a problem and tried again. It leaves the files when the context is done.
func (k *Keeper) Run(ctx context.Context, ready func() bool) error {
	announced := false
	for {
		announced = announced || ready()
		k.tend(announced)
		pause := keeping
		if !announced {
			pause = waiting
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// tend brings the files into place once.
func (k *Keeper) tend(announce bool) {
	var problems []string
	note := func(err error) {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	wrote, err := k.cfg.WritePlugin()
	note(err)
	if wrote {
		k.log.Info("CNI plugin is installed", "path", k.cfg.installed())
	}
	if announce && err == nil {
		wrote, err = k.cfg.WriteConf()
		note(err)
		if wrote {
			k.log.Info("CNI configuration is installed", "path", k.cfg.conf())
		}
	}
	others, err := k.cfg.Others()
	note(err)
	if len(others) > 0 {
		note(fmt.Errorf("CNI configuration of another network comes before %s in %s: pods are not attached by isthmus: remove %s", ConfName, k.cfg.ConfDir, strings.Join(others, ", ")))
	}
	k.problems.Store(&problems)
}

// Problems tells what is wrong now. It may be called from any goroutine.
func (k *Keeper) Problems() []string {
	if p := k.problems.Load(); p != nil {
		return *p
	}
	return nil
}
