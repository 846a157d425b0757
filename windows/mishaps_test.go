// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// outcome counts how often a variant of a fault occurred, how often the answer was that of the
// catalogue, and how often it was another one since. Timing may spoil single attempts, on a busy machine: such an
// attempt is repeated.
type outcome struct {
	met, answered, spoilt int
	last                  string
}

const churnDeadline = 100 * time.Millisecond

// mostSpoilt is how many attempts in succession may be spoilt.
const mostSpoilt = 20

// disturb lets one call of the next operation fail: refused, refused after taking effect, accepted without
// an effect, slow, or without an answer.
func (c *churn) disturb() {
	c.faults.Clear()
	if c.random.IntN(10) < 4 {
		return
	}
	codes := []uint32{hns.CodeNotFound, hns.CodeEndpointNotFound, hns.CodeUnspecified, hns.CodeAccessDenied, hns.CodeManagerStopped,
		hns.CodeServerUnavailable, hns.CodeRequestUnsupported, hns.CodePortExists, hns.CodeAlreadyExists, hns.CodeObjectExists, 0x803B002E, 0x803B0017}
	f := fault.Fault{Times: 1, Skip: c.random.IntN(40)}
	code := codes[c.random.IntN(len(codes))]
	switch c.random.IntN(7) {
	case 0:
		f.Code = code
	case 1:
		f.Code, f.After = code, true
	case 2:
		f.Lie = true
	case 3:
		f.Delay = churnDeadline / 4
	case 4: // no answer
		f.Delay, f.Code = 2*churnDeadline, code
	case 5: // done long after it was given up
		f.Delay = 2 * churnDeadline
	case 6: // done, and no answer
		f.Linger = 2 * churnDeadline
	}
	c.faults.Set(f)
	c.disturbed++
}

// strike brings the next fault of the catalogue about, does what meets it, and
// looks whether Isthmus answers as it should.
func (c *churn) strike() {
	c.faults.Clear()
	way := c.ways[c.turn]
	c.struck++
	o := c.outcomes[way.Name]
	if o == nil {
		o = &outcome{}
		c.outcomes[way.Name] = o
	}
	hits, answered := c.faults.Hits(), o.answered
	var met bool
	switch way.When {
	case fault.BeforeAdd:
		met = c.strikeAdd(way, o)
	case fault.BeforeDel:
		met = c.strikeDel(way, o)
	case fault.WhileItRuns:
		met = c.strikeRunning(way, o)
	case fault.BeforeStart:
		met = c.strikeStart(way, o)
	}
	if met && (len(way.Faults) == 0 || c.faults.Hits() > hits) {
		o.met++
		c.misses = 0
		if o.answered == answered {
			c.target.Calm()
			if o.spoilt++; o.spoilt == mostSpoilt {
				c.t.Errorf("%q was met %d times in succession and not answered as it should: %s", way.Name, o.spoilt, o.last)
			}
			eventually(c.t, "calls that a fault held up return", func() bool { return c.backend.Unfinished() == 0 })
			return // the same again
		}
		o.spoilt = 0
	} else if c.misses++; c.misses < 10 {
		c.target.Calm()
		return // the same again
	}
	c.turn = (c.turn + 1) % len(c.ways)
	c.target.Calm()
}

// judge counts if an operation ended as the variant expects.
func (o *outcome) judge(way fault.Way, err error) {
	if way.Says == "" && err == nil || way.Says != "" && err != nil && strings.Contains(err.Error(), way.Says) {
		o.answered++
	} else if err != nil {
		o.last = err.Error()
	} else {
		o.last = "no error"
	}
}

// quiet makes the node as it should be before a fault, so that what comes of it
// is seen.
func (c *churn) quiet() bool {
	c.audit()
	return c.apply() == nil
}

func (c *churn) strikeAdd(way fault.Way, o *outcome) bool {
	if len(c.attached) > 6 {
		c.deleteOne()
	}
	spec, ok := c.next()
	for range 10 {
		if ok {
			break
		}
		c.snapshot = snapshot(c.random.Uint64(), churnShape)
		c.apply()
		spec, ok = c.next()
	}
	if !ok || !c.quiet() {
		return false
	}
	c.target.Address = spec.IPs[0]
	if err := c.target.Strike(way); err != nil {
		return false
	}
	namespaces, err := c.fake.Namespaces(ctx)
	if err == nil && len(namespaces) == 0 { // the machine has restarted
		clear(c.attached)
	}
	err = c.addOne(spec)
	if said := c.backend.Faults(); err == nil && way.Mode == string(windows.Overlay) && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "tunnel") }) {
		o.last = "status does not mention the tunnel"
		return true
	}
	c.audit()
	o.judge(way, err)
	return true
}

// strikeDel removes a pod; it must be gone although HNS resists.
func (c *churn) strikeDel(way fault.Way, o *outcome) bool {
	if !c.quiet() || len(c.attached) == 0 {
		return false
	}
	id := slices.Sorted(maps.Keys(c.attached))[0]
	c.target.Endpoint, c.target.Namespace = c.name(id), c.attached[id].NetNS
	if err := c.target.Strike(way); err != nil {
		return false
	}
	err := c.remove(id)
	if err == nil && strings.Contains(c.fake.Dump(), "endpoint "+c.target.Endpoint+" ") {
		o.last = "DEL succeeded but the endpoint exists"
		return true
	}
	o.judge(way, err)
	return true
}

// strikeRunning changes policies while a pod has a fault; the audit and what
// comes next must put everything right, and others must not wait.
func (c *churn) strikeRunning(way fault.Way, o *outcome) bool {
	if !c.quiet() || len(c.attached) == 0 {
		return false
	}
	id := slices.Sorted(maps.Keys(c.attached))[0]
	c.target.Endpoint = c.name(id)
	if err := c.target.Strike(way); err != nil {
		return false
	}
	hits := c.faults.Hits()
	for range 6 { // until a change concerns what has the fault
		c.change(c.random.Uint64())
		spec, ok := c.next()
		if began := time.Now(); ok {
			_ = c.addOne(spec) // it may be the one that is hit
			if took := time.Since(began); took > 20*churnDeadline+5*time.Second {
				c.t.Errorf("%s: another pod waited %s", way.Name, took)
			}
		}
		c.look()
		if len(way.Faults) == 0 || c.faults.Hits() > hits {
			break
		}
	}
	c.audit()
	time.Sleep(time.Millisecond) // longer than ConnectWait: the next audit reports what stays unconnected
	c.audit()
	if said := strings.Join(c.backend.Faults(), "\n"); way.Name == "never connected" && !strings.Contains(said, c.target.Endpoint) {
		o.last = "status says nothing: " + said
		return true
	}
	c.target.Calm()
	if slices.ContainsFunc(way.Faults, func(f fault.Fault) bool { return f.Hang }) {
		time.Sleep(churnDeadline / 10) // what hung lands
	}
	o.judge(way, c.apply())
	return true
}

// strikeStart starts an agent that must refuse.
func (c *churn) strikeStart(way fault.Way, o *outcome) bool {
	if err := c.target.Strike(way); err != nil {
		return false
	}
	o.judge(way, c.restart())
	return true
}

// report fails for every variant that never occurred, or was not answered as expected last, and if more than a tenth of
// all attempts were spoilt.
func (c *churn) report() {
	c.t.Helper()
	met, answered := 0, 0
	for _, w := range c.ways {
		o := c.outcomes[w.Name]
		if o == nil || o.met == 0 {
			c.t.Errorf("%q was never met", w.Name)
			continue
		}
		met, answered = met+o.met, answered+o.answered
		if o.answered < o.met {
			c.t.Logf("%q was met %d times and answered as it should %d times: %s", w.Name, o.met, o.answered, o.last)
		}
		if o.spoilt > 0 {
			c.t.Errorf("%q was last not answered as it should: %s", w.Name, o.last)
		}
	}
	if 10*answered < 9*met {
		c.t.Errorf("of %d faults only %d were answered as they should", met, answered)
	}
}
