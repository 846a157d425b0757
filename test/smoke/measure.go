// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// measure attaches all pods, at several degrees of concurrency, and detaches them.
func (s *smoke) measure(ctx context.Context) error {
	for _, concurrency := range []int{1, 4, 8} {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var took []time.Duration
		var errs []error
		slots := make(chan struct{}, concurrency)
		for i := range pods {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				began := time.Now()
				err := s.attach(ctx, i)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, err)
					return
				}
				took = append(took, time.Since(began))
			})
		}
		wg.Wait()
		s.report.Adds += len(took)
		s.report.Latencies = append(s.report.Latencies, latency(concurrency, took))
		for i := range pods {
			errs = append(errs, s.remove(ctx, i))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("%d at once: %w", concurrency, err)
		}
	}
	return nil
}

// endpointsMeasured is how many endpoints each degree of concurrency measures.
const endpointsMeasured = 24

// measureCalls measures the calls of HNS that attach a pod, without agent and plugin.
func (s *smoke) measureCalls(ctx context.Context) error {
	network, err := s.findNetwork(ctx)
	if err == nil && network == "" {
		err = fmt.Errorf("network %s is gone", s.network)
	}
	if err != nil {
		return err
	}
	next := 0
	for _, concurrency := range []int{1, 4, pods} {
		m := &callTimes{took: make(map[string][]time.Duration)}
		work := make(chan int)
		var wg sync.WaitGroup
		for worker := range concurrency {
			wg.Go(func() {
				for i := range work {
					m.add(s.callsOf(ctx, m, network, s.namespaces[worker], s.host4(100+i)))
				}
			})
		}
		for range endpointsMeasured {
			work <- next
			next++
		}
		close(work)
		wg.Wait()
		for _, name := range []string{"create", "attach", "write", "delete"} {
			s.report.Calls = append(s.report.Calls, Call{Name: name, Latency: latency(concurrency, m.took[name])})
		}
		if err := errors.Join(m.errs...); err != nil {
			return fmt.Errorf("%d at once: %w", concurrency, err)
		}
	}
	return nil
}

// callTimes collects durations of calls by name.
type callTimes struct {
	mu   sync.Mutex
	took map[string][]time.Duration
	errs []error
}

func (m *callTimes) add(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.errs = append(m.errs, err)
	}
}

// time measures one call, unless it fails.
func (m *callTimes) time(name string, call func() error) error {
	began := time.Now()
	if err := call(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(began)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took[name] = append(m.took[name], took)
	return nil
}

// callsOf creates an endpoint that denies everything, attaches it, writes a list of 20 rules, and deletes it.
func (s *smoke) callsOf(ctx context.Context, m *callTimes, network, namespace string, address netip.Addr) (err error) {
	var e hns.Endpoint
	if err := m.time("create", func() (err error) {
		e, err = s.host.CreateEndpoint(ctx, endpointAt(network, address, acl.DenyAll()))
		return err
	}); err != nil {
		return fmt.Errorf("endpoint %s: %w", address, err)
	}
	err = m.time("attach", func() error { return s.host.AttachEndpoint(ctx, namespace, e.ID) })
	if err == nil {
		err = m.time("write", func() error {
			_, err := s.host.ModifyEndpoint(ctx, e.ID, hns.Update, policies(rules(20))...)
			return err
		})
	}
	// An endpoint of an interrupted run goes too.
	later, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err = errors.Join(err, m.time("delete", func() error { return s.host.DeleteEndpoint(later, e.ID) }))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", address, err)
	}
	return nil
}

// rules is a list that allows n-2 ports and denies everything else, as policy writes it.
func rules(n int) []hns.ACL {
	list := acl.DenyAll()
	for i := range list {
		if list[i].RuleType == hns.Switch {
			list[i].Priority = 60000 + uint16(i)
		}
	}
	for i := range n - 2 {
		list = append(list, hns.ACL{ID: fmt.Sprintf("isthmus-smoke-%d", i), Protocols: "6", LocalPorts: fmt.Sprint(8000 + 2*i), Action: hns.Allow,
			Direction: hns.In, RuleType: hns.Switch, Priority: 1000 + uint16(i)})
	}
	return list
}

// policies puts ACLs into the envelope of policies.
func policies(list []hns.ACL) []hns.Policy {
	all := make([]hns.Policy, len(list))
	for i, a := range list {
		all[i] = a.Policy()
	}
	return all
}

// endpointAt is the request for an endpoint. Windows takes the gateway from the network.
func endpointAt(network string, address netip.Addr, list []hns.ACL) hns.Endpoint {
	return hns.Endpoint{Name: "isthmus-smoke-" + address.String(), HostComputeNetwork: network, SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: address.String()}}, Policies: policies(list)}
}

// host4 returns an address of the range of pods.
func (s *smoke) host4(last int) netip.Addr {
	a := s.podCIDR.Addr().As4()
	a[3] = byte(last)
	return netip.AddrFrom4(a)
}

// findNetwork returns the id of the network of this run, or nothing.
func (s *smoke) findNetwork(ctx context.Context) (string, error) {
	list, err := s.host.Networks(ctx)
	if err != nil {
		return "", err
	}
	for _, n := range list {
		if strings.EqualFold(n.Name, s.network) {
			return n.ID, nil
		}
	}
	return "", nil
}

// makePair attaches two endpoints without the agent.
func (s *smoke) makePair(ctx context.Context) error {
	network, err := s.findNetwork(ctx)
	if err != nil {
		return err
	}
	for i := range 2 {
		e, err := s.host.CreateEndpoint(ctx, endpointAt(network, s.host4(10+i), nil))
		if err != nil {
			return fmt.Errorf("create endpoint: %w", err)
		}
		s.pair = append(s.pair, e.ID)
		if err := s.host.AttachEndpoint(ctx, s.namespaces[i], e.ID); err != nil {
			return fmt.Errorf("attach endpoint: %w", err)
		}
	}
	return nil
}

// removePair removes the endpoints of makePair.
func (s *smoke) removePair(ctx context.Context) error {
	var errs []error
	for _, id := range s.pair {
		if err := s.host.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, hns.ErrGone) {
			errs = append(errs, fmt.Errorf("remove endpoint: %w", err))
		}
	}
	s.pair = nil
	return errors.Join(errs...)
}
