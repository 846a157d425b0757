// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// openCall is a connection that stays open.
type openCall struct {
	*call
	conn net.Conn
	// lost is set when the connection was reset or refused.
	lost error
}

// openAll opens connections from a client to Services with one backend, in both IP versions, by TCP
// and UDP.
func (s *shopfront) openAll(t *testing.T, from string, names ...string) (all []*openCall) {
	t.Helper()
	for _, c := range s.calls {
		if c.from.name != from || c.protocol == model.SCTP || c.via != outside {
			continue
		}
		for _, name := range names {
			if c.to.name != name {
				continue
			}
			o := &openCall{call: c}
			var err error
			o.conn, err = c.from.open(c.protocol, c.at, 2*time.Second)
			must(t, err)
			t.Cleanup(func() { o.conn.Close() })
			all = append(all, o)
		}
	}
	return all
}

// goesOn reports whether a connection is answered, and the answer.
func (o *openCall) goesOn(patience time.Duration) (answer, bool) {
	got, err := exchange(o.conn, patience)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		o.lost = err
	}
	return got, err == nil
}

// holds compares the state of open connections with the reference.
func (s *shopfront) holds(when string, open []*openCall) {
	s.t.Helper()
	s.settle()
	e := s.reference()
	s.each(open, func(o *openCall) (ok, allowed bool) {
		w := o.expect(e)
		patience := 300 * time.Millisecond
		if len(w.allowed) > 0 {
			patience = 5 * time.Second // TCP retransmits dropped segments
		}
		got, answered := o.goesOn(patience)
		_, may := w.allowed[got.name]
		if answered && !may || !answered && len(w.allowed) > 0 || o.lost != nil {
			s.t.Errorf("%s: open connection %s: answered %t by %q, want %v (%v)", when, o.call, answered, got.name, w.allowed, o.lost)
			return false, len(w.allowed) > 0
		}
		return true, len(w.allowed) > 0
	})
}

// each evaluates open connections concurrently and counts the results.
func (s *shopfront) each(open []*openCall, judge func(*openCall) (ok, allowed bool)) {
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, o := range open {
		running.Go(func() {
			ok, allowed := judge(o)
			mu.Lock()
			defer mu.Unlock()
			s.count(ok, allowed)
		})
	}
	running.Wait()
}

// connectionsUnderChange keeps connections open while policies change, and while kube-proxy and the
// agents are killed.
func (s *shopfront) connectionsUnderChange() {
	s.t.Helper()
	open := s.openAll(s.t, "client1", "near", "far", "host2")
	s.holds("no policy", open)
	host := "{to: [" + blocks(single(s.cluster.Nodes[1].Addresses())...) + "]}"
	wide := egressOf("client", host+`, {to: [{podSelector: {matchLabels: {app: backend}}}]}`)
	far := egressOf("client", `{to: [{podSelector: {matchLabels: {name: far}}}]}`)
	for _, step := range []struct{ name, manifest string }{
		{"all allowed", wide}, {"one allowed", far}, {"all allowed again", wide}, {"none allowed", egressOf("client", "")}, {"all allowed at last", wide},
	} {
		must(s.t, s.apply(step.manifest))
		s.holds(step.name, open)
	}
	s.kube.restart()
	s.holds("kube-proxy restarted", open)
	s.restartAgents()
	s.holds("agents restarted", open)
	must(s.t, s.apply(far))
	s.restartAgents()
	s.holds("agents restarted under another policy", open)
	must(s.t, s.remove(far))
}

// anotherBackend moves a Service to another pod while flows are open. Datagrams must follow, which
// connection tracking alone would keep at the old backend. The policy of the new backend applies.
func (s *shopfront) anotherBackend() {
	s.t.Helper()
	near, far := s.backends["near"], s.backends["far"]
	svc := &service{name: "moving", port: 80, protocols: everyProtocol[:2], backends: []*backend{near},
		addresses: []netip.Addr{netip.MustParseAddr("10.96.0.99"), netip.MustParseAddr("fd96::99")}}
	must(s.t, s.apply(svc.manifest()+svc.slices(s.names(), near)))
	was := s.calls
	defer func() { s.calls = was }()
	for _, c := range s.clients {
		if c.name == "client1" {
			s.addCalls(c, svc)
		}
	}
	s.serving()
	open := s.openAll(s.t, "client1", "moving")
	s.holds("before the move", open)
	move := func(to ...*backend) { must(s.t, s.apply(svc.slices(s.names(), to...))) }

	must(s.t, s.apply(egressOf("client", `{to: [{podSelector: {matchLabels: {name: near}}}]}`)))
	s.holds("before the move, one allowed", open)
	move(far)
	s.moved("moved to a denied backend", open, far)
	must(s.t, s.apply(egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}]}`)))
	s.moved("and that was allowed", open, far)
	move() // kube-proxy keeps flows whose Service has no other backend
	s.moved("no backend", open, far)
	must(s.t, s.apply(egressOf("client", `{to: [{podSelector: {matchLabels: {name: near}}}]}`)))
	s.moved("no backend, and the last is denied", open, far)
	move(near)
	s.moved("moved back", open, near)
	must(s.t, s.remove(svc.manifest()+svc.slices(s.names())+egressOf("client", "")))
}

// moved waits until open flows reach the backends that kube-proxy chose: UDP the new backend, TCP
// the one to which it was opened. A denied backend must never answer, also during the change.
func (s *shopfront) moved(when string, open []*openCall, to *backend) {
	s.t.Helper()
	s.settle()
	e := s.reference()
	s.each(open, func(o *openCall) (ok, allowed bool) {
		at := to
		if o.protocol == model.TCP {
			at = s.backends["near"]
		}
		want := "" // no answer
		if len(o.verdict(e, at)) > 0 {
			want = at.name
		}
		got := s.arrives(o, e, want)
		if got != want {
			s.t.Errorf("%s: %s: answered by %q, want %q", when, o.call, got, want)
		}
		return got == want, want != ""
	})
}

// verdict returns the reference's verdicts on a call if b were its only backend.
func (c *call) verdict(e *policy.Evaluator, b *backend) map[string]netip.Addr {
	one, svc := *c, *c.to
	svc.backends, one.to = []*backend{b}, &svc
	return one.expect(e).allowed
}

// arrives sends requests until the wanted backend answers, and then checks that the answers stay
// the same. An answer of a denied backend fails immediately.
func (s *shopfront) arrives(o *openCall, e *policy.Evaluator, want string) (got string) {
	same := 0
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && same < 3; {
		answered, ok := o.goesOn(300 * time.Millisecond)
		got = answered.name
		if b := s.backends[got]; ok && len(o.verdict(e, b)) == 0 {
			return got + ", which is denied"
		}
		if got == want {
			same++
			continue
		}
		same = 0
	}
	return got
}
