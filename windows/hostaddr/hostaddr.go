// SPDX-License-Identifier: Apache-2.0

package hostaddr

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Max bounds the addresses of a host.
const Max = 512

// Config configures a Watch.
type Config struct {
	// Read returns the present addresses. If it is nil, the Watch has none.
	Read func() ([]netip.Addr, error)
	// Interval is the time between reads; 0 means 5 seconds.
	Interval time.Duration
	// Grace is how long a lost address counts; 0 means a minute.
	Grace time.Duration
}

// Defaults replaces zero fields by defaults.
func (c Config) Defaults() Config {
	if c.Interval == 0 {
		c.Interval = 5 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = time.Minute
	}
	return c
}

// Validate reports every invalid value.
func (c Config) Validate() error {
	var errs []error
	if c.Interval < 0 {
		errs = append(errs, fmt.Errorf("interval of host addresses %s: must be positive", c.Interval))
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace time of host addresses %s: must be positive", c.Grace))
	}
	return errors.Join(errs...)
}

// Watch knows the addresses of a host. It is used from one goroutine.
type Watch struct {
	cfg Config
	due time.Time
	// known maps each address to the time of the first read without it, or to zero.
	known    map[netip.Addr]time.Time
	current  []netip.Addr
	problems []string
}

// New returns a Watch that has read nothing yet.
func New(c Config) *Watch { return &Watch{cfg: c.Defaults(), known: make(map[netip.Addr]time.Time)} }

// Sync reads the addresses if that is due.
func (w *Watch) Sync(now time.Time) {
	if w.cfg.Read == nil || now.Before(w.due) {
		return
	}
	w.due, w.problems = now.Add(w.cfg.Interval), nil
	present, err := w.cfg.Read()
	if err != nil {
		w.problems = append(w.problems, fmt.Sprintf("the addresses of the host cannot be read, so pods deny probes from new ones: %s; the agent retries, restart it if that lasts",
			strings.ReplaceAll(err.Error(), "\n", "; ")))
		return
	}
	w.take(present, now)
}

// take merges the addresses of one read.
func (w *Watch) take(present []netip.Addr, now time.Time) {
	found := make(map[netip.Addr]bool)
	for _, a := range present {
		if !Usable(a) {
			w.problems = append(w.problems, fmt.Sprintf("the address %s of the host is ignored: packets to pods cannot have it as source", a))
			continue
		}
		found[a] = true
		w.known[a] = time.Time{}
	}
	for a, lost := range w.known {
		switch {
		case found[a]:
		case lost.IsZero():
			w.known[a] = now
		case now.Sub(lost) >= w.cfg.Grace:
			delete(w.known, a)
		}
	}
	w.current = slices.SortedFunc(maps.Keys(w.known), netip.Addr.Compare)
	if n := len(w.current); n > Max {
		w.current = w.current[:Max]
		w.problems = append(w.problems, fmt.Sprintf("the host has %d addresses, of which the lowest %d reach its pods: remove some", n, Max))
	}
}

// Usable reports whether packets to pods can have an address as source: it is no loopback, link-local or multicast
// address, and has no zone.
func Usable(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" }

// With returns the addresses that count and more ones, sorted, each once.
func (w *Watch) With(more []netip.Addr) []netip.Addr {
	all := slices.Concat(more, w.current)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Problems returns what prevents the Watch from knowing the addresses, each with the remedy.
func (w *Watch) Problems() []string { return w.problems }
