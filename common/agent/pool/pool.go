// SPDX-License-Identifier: Apache-2.0

// Package pool keeps endpoints ready for pods that do not exist yet, on data paths where creating an endpoint
// takes long. It decides how many and for which DNS settings, holds their addresses in the allocator, hands
// them to ADDs, and gives way when addresses run short.
//
// The data path is the only store: after a restart the pool continues with what it finds there.
//
// A Pool belongs to the loop of the agent, whose goroutine calls all methods. A nil Pool keeps nothing. It
// does not attach pods and knows no policy: a prepared endpoint denies everything.
package pool

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
)

// Config connects a Pool with the loop.
type Config struct {
	Size    Size
	Backend dataplane.Preparer
	Log     *slog.Logger
	// Context bounds one call of the Backend.
	Context func() (context.Context, context.CancelFunc)
	// Post lets the loop execute a function, from any goroutine.
	Post func(func())
	// Busy reports whether pods wait, so that nothing is to be prepared now.
	Busy func() bool
	// Step is called before each change of the data path.
	Step func(name string)
}

// The pauses after an endpoint that could not be prepared.
const (
	retryMin = 30 * time.Second
	retryMax = 8 * time.Minute
)

// Pool is the endpoint pool of a node.
type Pool struct {
	cfg       Config
	allocator *ipam.Allocator
	history   history
	preparing int
	// making counts those of each DNS setting.
	making map[string]int
	// next is when to prepare again after an error; delay is the last pause.
	next  time.Time
	delay time.Duration
	// failed and clipped are problems, or empty.
	failed, clipped string
	stats           Stats
}

// Stats describes a Pool.
type Stats struct {
	// Size reports whether a pool is wanted.
	Size Size
	// Ready endpoints can be used at once; Preparing counts those that are being made. Wanted is the sum that
	// the Pool aims at.
	Ready, Preparing, Wanted int
	// Hits counts ADDs that used a prepared endpoint, Misses those for which none was ready.
	Hits, Misses uint64
}

// New returns a Pool that has no allocator yet.
func New(cfg Config) *Pool {
	return &Pool{cfg: cfg, history: make(history), making: make(map[string]int), stats: Stats{Size: cfg.Size}}
}

// Note records that a pod with these DNS settings was attached at a time.
func (p *Pool) Note(dns model.DNS, at time.Time) {
	if p != nil && p.cfg.Size != Off {
		p.history.note(dns, at)
	}
}

// Use sets the allocator of the node's addresses, and takes the addresses of the prepared endpoints there.
func (p *Pool) Use(a *ipam.Allocator) {
	if p == nil {
		return
	}
	p.allocator = a
	p.sync()
}

const ownerPrefix = "the endpoint pool, "

// owner is the owner of the addresses of a prepared endpoint.
func owner(e dataplane.Prepared) string { return ownerPrefix + e.IPs[0].String() }

// holds reports whether the addresses of an endpoint belong to the pool.
func (p *Pool) holds(e dataplane.Prepared) bool {
	for _, a := range e.IPs {
		if who, _ := p.allocator.Owner(a); who != owner(e) {
			return false
		}
	}
	return true
}

// ready lists the endpoints that can be used.
func (p *Pool) ready() []dataplane.Prepared {
	if p == nil || p.allocator == nil {
		return nil
	}
	return slices.DeleteFunc(p.cfg.Backend.Prepared(), func(e dataplane.Prepared) bool { return len(e.IPs) == 0 || !p.holds(e) })
}

// sync makes the allocator agree with the endpoints of the data path. Endpoints whose addresses pods have, or
// whose addresses the node no longer has, are discarded; without a size all are.
func (p *Pool) sync() {
	if p.allocator == nil {
		return
	}
	present := make(map[string]bool)
	for _, e := range p.cfg.Backend.Prepared() {
		if p.cfg.Size == Off || len(e.IPs) == 0 || !p.claim(e) {
			if !time.Now().Before(p.next) {
				p.discard(e)
			}
			continue
		}
		present[owner(e)] = true
	}
	if p.preparing > 0 {
		return // their addresses belong to no endpoint yet
	}
	for _, who := range p.allocator.Owners() {
		if !strings.HasPrefix(who, ownerPrefix) || present[who] {
			continue
		}
		lost, _ := p.allocator.Allocate(who, time.Now()) // those that it has
		for _, a := range lost {
			p.allocator.Cancel(a)
		}
	}
}

// claim takes the addresses of an endpoint, unless another owner has one or they do not fit the node's
// ranges.
func (p *Pool) claim(e dataplane.Prepared) bool {
	families := make(map[bool]bool)
	for _, u := range p.allocator.Usage(time.Now()) {
		families[u.Pool.Addr().Is6()] = true
	}
	if len(families) != len(e.IPs) {
		return false
	}
	for _, a := range e.IPs {
		who, taken := p.allocator.Owner(a)
		inside := slices.ContainsFunc(p.allocator.Usage(time.Now()), func(u ipam.Usage) bool { return u.Pool.Contains(a) })
		if !inside || taken && who != owner(e) {
			return false
		}
	}
	for _, a := range e.IPs {
		if err := p.allocator.Restore(a, owner(e)); err != nil {
			return false
		}
	}
	return true
}

// discard removes an endpoint and frees its addresses. No pod has used them.
func (p *Pool) discard(e dataplane.Prepared) bool {
	ctx, cancel := p.cfg.Context()
	defer cancel()
	p.cfg.Step("pool.discard")
	if err := p.cfg.Backend.Discard(ctx, e); err != nil {
		p.fail(err)
		return false
	}
	for _, a := range e.IPs {
		if who, _ := p.allocator.Owner(a); who == owner(e) {
			p.allocator.Cancel(a)
		}
	}
	return true
}

// Take gives an ADD the addresses of a prepared endpoint with these DNS settings, or nil. The data path then
// uses the endpoint.
func (p *Pool) Take(id model.EndpointID, dns model.DNS) []netip.Addr {
	if p == nil || p.cfg.Size == Off || p.allocator == nil {
		return nil
	}
	for _, e := range p.ready() {
		if !e.DNS.Equal(dns) {
			continue
		}
		for _, a := range e.IPs {
			p.allocator.Cancel(a)
		}
		ips, err := p.allocator.AllocateFixed(string(id), e.IPs, time.Now())
		if err != nil {
			p.cfg.Log.Error("take the addresses of a prepared endpoint", "endpoint", e.IPs, "error", err)
			return nil
		}
		p.stats.Hits++
		return ips
	}
	p.stats.Misses++
	return nil
}

// Yield discards the prepared endpoints that have one of the addresses, for a pod that requests them.
func (p *Pool) Yield(ips []netip.Addr) {
	for _, e := range p.ready() {
		if slices.ContainsFunc(e.IPs, func(a netip.Addr) bool { return slices.Contains(ips, a) }) {
			p.discard(e)
		}
	}
}

// GiveWay discards one prepared endpoint, because a pod needs an address. It reports whether there was one.
func (p *Pool) GiveWay() bool {
	for _, e := range p.ready() {
		return p.discard(e)
	}
	return false
}

// Idle works towards the wanted endpoints: it removes one that is too many, and begins to prepare some.
func (p *Pool) Idle() {
	if p == nil || p.allocator == nil {
		return
	}
	p.sync()
	wanted := p.wanted()
	have := p.ready()
	for _, e := range have {
		if p.excess(have, wanted, e.DNS.String()) {
			p.discard(e)
			return
		}
	}
	p.fill()
}

// excess reports whether an endpoint with these DNS settings is too many. One more than wanted stays, unless
// the sum is too large: shares change with every ADD.
func (p *Pool) excess(have []dataplane.Prepared, wanted map[string]int, dns string) bool {
	n, sum := count(have, dns), 0
	for _, w := range wanted {
		sum += w
	}
	return n > wanted[dns]+1 || n > wanted[dns] && (wanted[dns] == 0 || len(have) > sum)
}

func count(have []dataplane.Prepared, dns string) (n int) {
	for _, e := range have {
		if e.DNS.String() == dns {
			n++
		}
	}
	return n
}

// wanted returns how many endpoints to keep for each of the DNS settings. Half of the free addresses, with
// Auto three quarters, stay free.
func (p *Pool) wanted() map[string]int {
	free := 1e9
	for _, u := range p.allocator.Usage(time.Now()) {
		free = min(free, u.Free)
	}
	part := 2
	if p.cfg.Size == Auto {
		part = 4
	}
	most := (int(free) + len(p.ready()) + p.preparing) / part
	p.clipped = ""
	if int(p.cfg.Size) > most {
		p.clipped = fmt.Sprintf("warning: endpoint pool: %d prepared endpoints are requested and at most %d are kept, because half of the free addresses stay free: use a larger pod range, or a smaller --endpoint-pool",
			p.cfg.Size, most)
	}
	wanted := p.history.wanted(p.cfg.Size, most, time.Now())
	p.stats.Wanted = 0
	for _, n := range wanted {
		p.stats.Wanted += n
	}
	return wanted
}

// fill begins to prepare endpoints, unless pods wait: half as many at a time as attachments.
func (p *Pool) fill() {
	if p.cfg.Busy() || time.Now().Before(p.next) {
		return
	}
	wanted := p.wanted()
	have := p.ready()
	total := p.stats.Wanted - len(have) - p.preparing
	for key, u := range p.history {
		for n := wanted[key] - count(have, key) - p.making[key]; n > 0 && total > 0; n-- {
			if p.preparing >= max(1, p.cfg.Backend.Starts()/2) || !p.prepare(u.dns) {
				return
			}
			total--
		}
	}
}

// prepare begins to prepare one endpoint. It reports false if that failed.
func (p *Pool) prepare(dns model.DNS) bool {
	const maker = "a new prepared endpoint"
	ips, err := p.allocator.Allocate(maker, time.Now())
	if err != nil {
		return false // wanted leaves addresses free: another family may have none
	}
	for _, a := range ips {
		p.allocator.Cancel(a)
	}
	e := dataplane.Prepared{IPs: ips, DNS: dns}
	for _, a := range ips {
		if err := p.allocator.Restore(a, owner(e)); err != nil {
			p.fail(err)
			return false
		}
	}
	ctx, cancel := p.cfg.Context()
	p.cfg.Step("pool.prepare")
	var finish func(context.Context) error
	finish, err = p.cfg.Backend.Prepare(ctx, e, func() {
		p.cfg.Post(func() {
			defer cancel()
			p.finish(e, finish)
		})
	})
	if err != nil {
		cancel()
		p.release(e)
		p.fail(err)
		return false
	}
	p.preparing++
	p.making[dns.String()]++
	return true
}

// finish completes an endpoint that was made concurrently with the loop, and begins the next ones.
func (p *Pool) finish(e dataplane.Prepared, finish func(context.Context) error) {
	p.preparing--
	p.making[e.DNS.String()]--
	ctx, cancel := p.cfg.Context()
	defer cancel()
	p.cfg.Step("pool.finish")
	if err := finish(ctx); err != nil {
		p.release(e)
		p.fail(err)
		return
	}
	p.failed, p.delay, p.next = "", 0, time.Time{}
	p.fill()
}

// release frees the addresses of an endpoint that was not made.
func (p *Pool) release(e dataplane.Prepared) {
	for _, a := range e.IPs {
		if who, _ := p.allocator.Owner(a); who == owner(e) {
			p.allocator.Cancel(a)
		}
	}
}

// fail records an error and pauses.
func (p *Pool) fail(err error) {
	p.delay = min(max(2*p.delay, retryMin), retryMax)
	p.next = time.Now().Add(p.delay)
	p.failed = "warning: endpoint pool: " + strings.ReplaceAll(err.Error(), "\n", "; ") + ": pods start without prepared endpoints meanwhile"
	p.cfg.Log.Warn("keep the endpoint pool; retrying", "error", err, "after", p.delay)
}

// Problems lists what keeps the Pool from its size.
func (p *Pool) Problems() (all []string) {
	if p == nil {
		return nil
	}
	for _, text := range []string{p.clipped, p.failed} {
		if text != "" {
			all = append(all, text)
		}
	}
	return all
}

// Stats describes the Pool. A nil Pool has no size.
func (p *Pool) Stats() Stats {
	if p == nil {
		return Stats{}
	}
	s := p.stats
	s.Ready, s.Preparing = len(p.ready()), p.preparing
	return s
}
