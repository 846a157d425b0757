// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// shopfront holds two nodes with Services of every kind, and all their clients.
type shopfront struct {
	*nodes
	kube     *proxies
	backends map[string]*backend
	services []*service
	clients  []client
	calls    []*call

	tally // of all calls so far
}

const (
	podPort  = 8080
	hostPort = 9090
)

// TestServices compares the results of flows to Services, which the real kube-proxy translates, with the verdicts
// of the reference for client and backend. Nodes reach each other by the routes of their agents, or on separate
// segments by VXLAN.
func TestServices(t *testing.T) {
	if testing.Short() {
		t.Skip("needs kube-apiserver and no -short: make test-api builds it and runs this")
	}
	var all tally
	for _, c := range []struct {
		fabric   string
		segments int
		modes    []string
	}{{"routes", 1, []string{"nftables", "iptables"}}, {"vxlan", 2, []string{"nftables"}}} {
		t.Run(c.fabric, func(t *testing.T) {
			s := openShop(t, c.segments)
			for _, mode := range c.modes {
				t.Run(mode, func(t *testing.T) {
					s.t = t
					s.trade(mode)
				})
			}
			s.t = t
			all.add(s.tally)
		})
	}
	t.Logf("services: proxies=%d flows=%d allowed=%d denied=%d differ=%d", all.proxies, all.flows, all.allowed, all.denied, all.differ)
	if all.proxies != 3 || all.allowed < 1000 || all.denied < 1000 {
		t.Error("too few flows to show anything")
	}
}

// tally counts comparisons.
type tally struct{ proxies, flows, allowed, denied, differ int }

func (t *tally) add(o tally) {
	t.proxies += o.proxies
	t.flows += o.flows
	t.allowed += o.allowed
	t.denied += o.denied
	t.differ += o.differ
}

// trade tests all calls with kube-proxy in one mode.
func (s *shopfront) trade(mode string) {
	t := s.t
	t.Helper()
	s.proxies++
	s.kube = s.startProxies(t, mode)
	s.serving()
	_, outside := s.cluster.Outside()
	for _, c := range policiesOnServices(s.cluster.Nodes[0].Addresses(), s.cluster.Nodes[1].Addresses(), outside) {
		must(t, s.apply(c.manifests))
		s.judge(c.name)
		must(t, s.remove(c.manifests))
		s.settle()
	}
	s.connectionsUnderChange()
	s.anotherBackend()
	s.kube.alive()
}

// openShop attaches the pods and writes the Services.
func openShop(t *testing.T, segments int) *shopfront {
	t.Helper()
	s := &shopfront{nodes: newNodes(t, segments), backends: make(map[string]*backend)}
	must(t, s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"))
	servers := traffic.ServersFor(t)
	for _, p := range []struct {
		name, app string
		node      int
	}{{"client1", "client", 0}, {"client2", "client", 1}, {"other1", "other", 0}, {"near", "backend", 0}, {"far", "backend", 1}} {
		pod := s.attach(s.place(p.node, "shop", p.name, map[string]string{"app": p.app, "name": p.name}))
		for _, a := range pod.IPs {
			must(t, respond(servers, pod.NS, p.name, netip.AddrPortFrom(a, podPort)))
			s.clients = append(s.clients, client{p.name, p.node, true, asker{pod.NS, a}})
		}
		if p.app == "backend" {
			s.backends[p.name] = &backend{p.name, p.node, pod.IPs, podPort, true}
		}
	}
	for i, node := range s.cluster.Nodes {
		name := fmt.Sprintf("host%d", i+1)
		s.backends[name] = &backend{name, i, node.Addresses(), hostPort, false}
		for _, a := range node.Addresses() {
			must(t, respond(servers, node.NS, name, netip.AddrPortFrom(a, hostPort)))
			s.clients = append(s.clients, client{name, i, false, asker{node.NS, a}})
		}
	}
	ns, addresses := s.cluster.Outside()
	s.backends["world"] = &backend{"world", outside, addresses, hostPort, false}
	for _, a := range addresses {
		must(t, respond(servers, ns, "world", netip.AddrPortFrom(a, hostPort)))
		s.clients = append(s.clients, client{"outside", outside, false, asker{ns, a}})
	}
	s.writeServices()
	return s
}

var everyProtocol = []model.Protocol{model.TCP, model.UDP, model.SCTP}

func (s *shopfront) writeServices() {
	s.t.Helper()
	var manifests string
	add := func(name string, nodePort uint16, local bool, names ...string) {
		n := len(s.services) + 16
		svc := &service{name: name, port: 80, nodePort: nodePort, local: local, protocols: everyProtocol,
			addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}), netip.MustParseAddr(fmt.Sprintf("fd96::%x", n))}}
		for _, b := range names {
			svc.backends = append(svc.backends, s.backends[b])
		}
		s.services = append(s.services, svc)
		manifests += svc.manifest() + svc.slices(s.names(), svc.backends...)
	}
	add("near", 0, false, "near")
	add("far", 0, false, "far")
	add("both", 0, false, "near", "far")
	add("host1", 0, false, "host1")
	add("host2", 0, false, "host2")
	add("world", 0, false, "world")
	add("port-both", 30080, false, "near", "far")
	add("port-near", 30081, true, "near")
	// The API server creates its Service itself. Here it has no backends.
	api := s.server.api.port
	_, addresses := s.cluster.Outside()
	manifests += fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, "+
		"addressType: IPv4, ports: [{name: https, port: %d, protocol: TCP}], endpoints: [{addresses: [%q], conditions: {ready: true}}]}", api, addresses[0])
	s.services = append(s.services, &service{name: "kubernetes", addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, port: 443,
		protocols: []model.Protocol{model.TCP}, backends: []*backend{{"api", outside, addresses[:1], uint16(api), false}}})
	must(s.t, s.apply(manifests))
	for _, c := range s.clients {
		for _, svc := range s.services {
			s.addCalls(c, svc)
		}
	}
}

// names returns the names of the nodes.
func (s *shopfront) names() (all []string) {
	for _, n := range s.cluster.Nodes {
		all = append(all, n.Name)
	}
	return all
}

// addCalls adds the calls of a client in its family. The test does not call a Service that preserves sources
// through the port of another node from within the cluster: its answers would bypass that node.
func (s *shopfront) addCalls(c client, svc *service) {
	v6 := c.from.Is6()
	for _, p := range svc.protocols {
		k := call{from: c, to: svc, protocol: p, via: outside}
		if c.node != outside {
			k.own = familyOf(s.cluster.Nodes[c.node].Addresses(), v6)
			if a := familyOf(svc.addresses, v6); a.IsValid() {
				k.at = netip.AddrPortFrom(a, svc.port)
				s.calls = append(s.calls, &k)
			}
		}
		for i, n := range s.cluster.Nodes {
			if svc.nodePort == 0 || svc.local && c.node != outside && c.node != i {
				continue
			}
			byNode := k
			byNode.via, byNode.viaAddress = i, familyOf(n.Addresses(), v6)
			byNode.at = netip.AddrPortFrom(byNode.viaAddress, svc.nodePort)
			s.calls = append(s.calls, &byNode)
		}
	}
}

// serving waits until kube-proxy has written all rules: without a policy every call is answered, except those
// that it answers on one node only, and by SCTP those that some backends never answer.
func (s *shopfront) serving() {
	s.t.Helper()
	s.settle()
	e := s.reference()
	for deadline := time.Now().Add(waiting); ; time.Sleep(100 * time.Millisecond) {
		s.kube.alive()
		missing := ""
		var mu sync.Mutex
		each(s.calls, func(c *call) {
			w := c.expect(e)
			if len(w.allowed) == 0 || w.denied > 0 {
				return
			}
			if _, err := c.ask(time.Second); err != nil {
				mu.Lock()
				defer mu.Unlock()
				missing = fmt.Sprintf("%s: %v", c, err)
			}
		})
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("never served: %s", missing)
		}
	}
}

func (c *call) ask(patience time.Duration) (answer, error) {
	if c.to.name == "kubernetes" {
		return answer{name: "api"}, c.from.askAPI(c.at, patience)
	}
	return c.from.ask(c.protocol, c.at, patience)
}

// each calls f concurrently.
func each(calls []*call, f func(*call)) {
	var running sync.WaitGroup
	slots := make(chan struct{}, 64)
	for _, c := range calls {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			f(c)
		})
	}
	running.Wait()
}

// judge makes every call, and compares it with the last written objects.
func (s *shopfront) judge(name string) {
	s.t.Helper()
	s.settle()
	e := s.reference()
	var mu sync.Mutex
	each(s.calls, func(c *call) {
		w := c.expect(e)
		err := c.try(w)
		mu.Lock()
		defer mu.Unlock()
		s.count(err == nil, len(w.allowed) > 0)
		if err != nil {
			s.t.Errorf("%s: %s: %v", name, c, err)
		}
	})
}

// count counts a comparison, and whether its flow is allowed.
func (s *shopfront) count(ok, allowed bool) {
	s.flows++
	if allowed {
		s.allowed++
	} else {
		s.denied++
	}
	if !ok {
		s.differ++
	}
}

// The number of attempts of one call: enough for kube-proxy to choose each backend.
const tries = 40

// try repeats a call until every allowed backend has answered, and denied backends were silent as often as
// expected. If an expected answer does not arrive it waits longer, because the machine may be busy.
func (c *call) try(w want) error {
	heard := make(map[string]bool)
	silent := 0
	for n := range tries {
		patience := 250 * time.Millisecond
		if w.denied == 0 && len(w.allowed) > 0 {
			patience = waiting
		}
		got, err := c.ask(patience)
		seen, expected := w.allowed[got.name]
		switch {
		case errors.Is(err, errSilence):
			silent++
		case err != nil && len(w.allowed) == 0:
			return fmt.Errorf("denied, but not in silence: %w", err)
		case err != nil:
			return err
		case !expected:
			return fmt.Errorf("%s answered, which is denied", got.name)
		case got.seen.IsValid() && got.seen != seen:
			return fmt.Errorf("%s saw %s, want %s", got.name, got.seen, seen)
		default:
			heard[got.name] = true
		}
		if w.denied == 0 && silent > 0 && len(w.allowed) > 0 {
			return fmt.Errorf("silence, want an answer of %v", w.allowed)
		}
		if len(heard) == len(w.allowed) && (w.denied == 0 || silent > 0) && (len(w.allowed) > 0 || n+1 >= min(w.denied, 2)) {
			return nil
		}
	}
	return fmt.Errorf("heard %v and %d times silence in %d calls, want answers of %v", heard, silent, tries, w.allowed)
}
