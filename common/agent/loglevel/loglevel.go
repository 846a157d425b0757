// SPDX-License-Identifier: Apache-2.0

// Package loglevel changes the level of a log while it is written, for a time or until the next start.
//
// It does not write the log, and it does not decide who may change it.
package loglevel

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Level is the level of a log. Its methods may be called from any goroutine.
type Level struct {
	mu         sync.Mutex
	level      *slog.LevelVar
	configured slog.Level
	until      time.Time
	revert     *time.Timer
}

// State describes a Level.
type State struct {
	// Level is in force until Until, and Configured after that; a zero Until means until the next start.
	Level, Configured string
	Until             time.Time
}

// Longest is the longest time for which a level can be set.
const Longest = 24 * time.Hour

// New returns the Level of a log that takes its level from v. The level of this moment is the configured one.
func New(v *slog.LevelVar) *Level { return &Level{level: v, configured: v.Level()} }

// Get returns the state.
func (l *Level) Get() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{name(l.level.Level()), name(l.configured), l.until}
}

// Set changes the level to debug, info, warn or error. After a time it returns to the configured level; 0 means never.
func (l *Level) Set(text string, after time.Duration) error {
	levels := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	i := slices.IndexFunc(levels, func(one slog.Level) bool { return name(one) == text })
	if i < 0 {
		return fmt.Errorf("level %q: give debug, info, warn or error", text)
	}
	if after < 0 || after > Longest {
		return errors.New("time of the level: give 0 to 24h")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revert != nil {
		l.revert.Stop()
	}
	l.revert, l.until = nil, time.Time{}
	l.level.Set(levels[i])
	if after > 0 && levels[i] != l.configured {
		l.until = time.Now().Add(after)
		var timer *time.Timer
		timer = time.AfterFunc(after, func() { l.end(&timer) })
		l.revert = timer
	}
	return nil
}

// end returns to the configured level, unless the level was set again meanwhile.
func (l *Level) end(timer **time.Timer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revert == *timer {
		l.level.Set(l.configured)
		l.revert, l.until = nil, time.Time{}
	}
}

func name(l slog.Level) string { return strings.ToLower(l.String()) }
