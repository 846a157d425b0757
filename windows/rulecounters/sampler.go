// SPDX-License-Identifier: Apache-2.0

package rulecounters

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

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
)

// MinInterval bounds Config.Interval: each pass runs a program for every pod.
const MinInterval = 10 * time.Second

// Config configures a Sampler.
type Config struct {
	Run Runner
	// Interval is the time between two passes. A pass that takes longer than half of it delays the next one.
	Interval time.Duration
	Log      *slog.Logger
}

// Sampler reads the counters. Its methods are safe for concurrent use.
type Sampler struct {
	config Config

	mu      sync.Mutex // guards the fields below
	journal journal
	ledger  ledger
	why     error // why there are no numbers
	// passed is true after the first complete pass.
	passed bool

	reads map[model.EndpointID]*reading // of the passes; a pass writes under mu

	passing sync.Mutex // of a pass
	cache   map[cacheKey]map[string]*acl.Decider
}

// New returns a Sampler.
func New(c Config) *Sampler {
	return &Sampler{config: c, journal: newJournal(), ledger: newLedger(), reads: make(map[model.EndpointID]*reading)}
}

// Begin records a State before the first write for it.
func (s *Sampler) Begin(state *model.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal.begin(state)
}

// Writing records that the list of an endpoint, or a set that it refers to, is about to change.
func (s *Sampler) Writing(id model.EndpointID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal.write(id)
}

// Installed records what HNS holds for all endpoints whose lists are certain.
func (s *Sampler) Installed(all map[model.EndpointID]Installed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal.install(all)
}

// Run makes passes until the context is done.
func (s *Sampler) Run(ctx context.Context) {
	for {
		began := time.Now()
		s.Pass(ctx)
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(s.config.Interval-took, took)):
		}
	}
}

// Pass reads the counters of all pods once, one after the other.
func (s *Sampler) Pass(ctx context.Context) {
	s.passing.Lock()
	defer s.passing.Unlock()
	err := s.pass(ctx)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && (s.why == nil || s.why.Error() != err.Error()) {
		s.config.Log.Warn("packets are not counted by rule", "error", err)
	}
	s.why, s.passed = err, s.passed || err == nil
}

func (s *Sampler) pass(ctx context.Context) error {
	s.mu.Lock()
	ids := slices.Sorted(maps.Keys(s.journal.installed))
	s.mu.Unlock()
	output, err := s.config.Run(ctx, "/list-vmswitch-port", "/format", "1")
	if err != nil {
		return err
	}
	ports, err := DecodePorts(output)
	if err != nil {
		return fmt.Errorf("output of vfpctrl /list-vmswitch-port: %w", err)
	}
	used := make(map[cacheKey]map[string]*acl.Decider)
	var last error
	done := 0
	for _, id := range ids {
		err := s.read(ctx, id, ports, used)
		switch {
		case errors.Is(err, errOutput):
			return err
		case err != nil:
			last = err // the pod may be gone
		default:
			done++
		}
	}
	s.cache = used
	s.forget()
	if done == 0 && last != nil {
		return last
	}
	return nil
}

// errOutput is the error for output that is not as expected.
var errOutput = errors.New("output of vfpctrl /get-rule-counter")

// read reads the counters of a pod.
func (s *Sampler) read(ctx context.Context, id model.EndpointID, ports map[string]string, used map[cacheKey]map[string]*acl.Decider) error {
	s.mu.Lock()
	mark, in := s.journal.mark(), s.journal.installed[id]
	s.mu.Unlock()
	if in.GUID == "" {
		return nil // its list is being written
	}
	port, ok := ports[strings.ToLower(in.GUID)]
	if !ok {
		return fmt.Errorf("vfpctrl lists no port of endpoint %s", in.GUID)
	}
	output, err := s.config.Run(ctx, "/port", port, "/get-rule-counter", "/format", "1")
	if err != nil {
		return err
	}
	rules, err := DecodeRules(output)
	if err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	now, err := byACL(rules, in.List)
	if err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	was, next := s.reads[id], &reading{guid: in.GUID, mark: mark, counters: now}
	s.mu.Lock()
	states, clean := s.journal.latest(), false
	if was != nil && was.guid == in.GUID {
		if all, same := s.journal.since(id, was.mark); same {
			states, clean = all, true
		}
	}
	s.mu.Unlock()
	next.deciders = s.decidersOf(id, states, &in, used) // takes its time
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads[id] = next
	switch {
	case was == nil || was.guid != in.GUID: // what was counted before is of earlier lists
	case clean:
		s.ledger.add(next.deciders, in.List, was.counters, now)
	default:
		s.ledger.unassigned(in.List, was.counters, now)
	}
	return nil
}

// forget removes what belongs to pods that are gone.
func (s *Sampler) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.reads, func(id model.EndpointID, _ *reading) bool { return !s.journal.holds(id) })
	s.journal.forget()
	oldest := s.journal.mark()
	for _, r := range s.reads {
		oldest = min(oldest, r.mark)
	}
	s.journal.prune(oldest)
}

// CauseCounts returns the numbers of packets. The error wraps dataplane.ErrNotCounted.
func (s *Sampler) CauseCounts() (dataplane.CauseCounts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return dataplane.CauseCounts{}, fmt.Errorf("%w: %w", dataplane.ErrNotCounted, s.why)
	}
	if !s.passed {
		return dataplane.CauseCounts{}, fmt.Errorf("%w: the first pass is not complete", dataplane.ErrNotCounted)
	}
	return s.ledger.counts(s.reads), nil
}

// Fact describes the counters, for administrators.
func (s *Sampler) Fact() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return "rule counters: none: " + s.why.Error()
	}
	return "rule counters: packets, from vfpctrl"
}
