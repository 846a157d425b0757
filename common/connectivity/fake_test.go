// SPDX-License-Identifier: Apache-2.0

package connectivity_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/model"
)

// fake is a cluster in memory whose nodes enforce policies. Fields named without a verb are faults.
type fake struct {
	t  *testing.T
	mu sync.Mutex
	// namespaces are those that exist; alive are runs whose beat changes.
	namespaces map[string]connectivity.Tenancy
	alive      map[string]bool
	pods       map[string]connectivity.Pod
	policies   []connectivity.Policy
	// lag is the number of probes for which a change of policies has no effect.
	lag     int
	waiting int
	before  []connectivity.Policy

	missing    string                                                 // a pod that never runs
	unenforced bool                                                   // policy has no effect
	end        func(from string, t probe.Target) (probe.Answer, bool) // replaces an answer
	fails      func(ctx context.Context, method string) error         // of a method
	calls      map[string]int
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, namespaces: make(map[string]connectivity.Tenancy), alive: make(map[string]bool), pods: make(map[string]connectivity.Pod), calls: make(map[string]int)}
}

// enter counts a call and returns its planned error. It is an error to call anything with a context that is done.
func (f *fake) enter(ctx context.Context, method string) error {
	f.mu.Lock()
	f.calls[method]++
	f.mu.Unlock()
	if f.fails != nil {
		if err := f.fails(ctx, method); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f *fake) Tenancies(ctx context.Context) (all []connectivity.Tenancy, err error) {
	if err := f.enter(ctx, "Tenancies"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, t := range f.namespaces {
		if f.alive[name] {
			t.Beat = fmt.Sprint(f.calls["Tenancies"])
		}
		all = append(all, t)
	}
	return all, nil
}

func (f *fake) Create(ctx context.Context, t connectivity.Tenancy) error {
	if err := f.enter(ctx, "Create"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, exists := f.namespaces[t.Namespace]; exists {
		return errors.New("exists")
	}
	f.namespaces[t.Namespace] = t
	return nil
}

func (f *fake) Touch(ctx context.Context, t connectivity.Tenancy) error {
	if err := f.enter(ctx, "Touch"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, exists := f.namespaces[t.Namespace]; !exists {
		return errors.New("does not exist")
	}
	f.namespaces[t.Namespace] = t
	return nil
}

func (f *fake) Remove(ctx context.Context, namespace string) error {
	if err := f.enter(ctx, "Remove"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.namespaces, namespace)
	return nil
}

// place returns the addresses of a pod.
func (f *fake) place(name string) []netip.Addr {
	node := byte(f.pods[name].Node.Name[1] - '0')
	host := byte(2)
	if strings.HasPrefix(name, "server") {
		host = 3
	}
	all := []netip.Addr{netip.AddrFrom4([4]byte{10, 244, node, host})}
	if f.pods[name].Node.OS == model.Linux {
		all = append(all, netip.MustParseAddr(fmt.Sprintf("fd44::%d:%d", node, host)))
	}
	return all
}

func (f *fake) service(name string) []netip.Addr {
	n := strings.TrimPrefix(name, "server-")
	return []netip.Addr{netip.MustParseAddr("10.96.0." + n), netip.MustParseAddr("fd96::" + n)}
}

func (f *fake) Start(ctx context.Context, namespace string, pods []connectivity.Pod) (map[string][]netip.Addr, error) {
	if err := f.enter(ctx, "Start"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.namespaces[namespace]; !ok {
		f.t.Errorf("pods without namespace %s", namespace)
	}
	services := make(map[string][]netip.Addr)
	for _, p := range pods {
		f.pods[p.Name] = p
		if p.Role == connectivity.Server {
			services[p.Name] = f.service(p.Name)
		}
	}
	return services, nil
}

func (f *fake) States(ctx context.Context, _ string) (map[string]connectivity.PodState, error) {
	if err := f.enter(ctx, "States"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	states := make(map[string]connectivity.PodState)
	for name := range f.pods {
		if name == f.missing || f.calls["States"] < 2 {
			states[name] = connectivity.PodState{Waits: "ImagePullBackOff"}
			continue
		}
		states[name] = connectivity.PodState{Running: true, Addresses: f.place(name)}
	}
	return states, nil
}

func (f *fake) Enforce(ctx context.Context, _ string, policies []connectivity.Policy) error {
	if err := f.enter(ctx, "Enforce"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.policies, f.waiting = f.policies, policies, f.lag
	return nil
}

func (f *fake) Probe(ctx context.Context, _ string, from connectivity.Pod, _ time.Duration, targets []probe.Target) ([]probe.Answer, error) {
	if err := f.enter(ctx, "Probe"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	policies := f.policies
	if f.waiting > 0 {
		policies = f.before
		f.waiting--
	}
	if len(targets) > probe.MaxTargets {
		f.t.Errorf("%d targets", len(targets))
	}
	answers := make([]probe.Answer, len(targets))
	for i, t := range targets {
		answers[i] = f.answer(from, t, policies)
		if f.end != nil {
			if a, ok := f.end(from.Name, t); ok {
				answers[i] = a
			}
		}
	}
	return answers, nil
}

func (f *fake) answer(from connectivity.Pod, t probe.Target, policies []connectivity.Policy) probe.Answer {
	a, err := netip.ParseAddr(t.Host)
	var to string
	for name := range f.pods {
		if strings.HasPrefix(name, "server") && (t.Host == name || err == nil && (slices.Contains(f.place(name), a) || slices.Contains(f.service(name), a))) {
			to = name
		}
	}
	if to == "" {
		return probe.Answer{State: probe.Refused} // of a node
	}
	for _, d := range model.Directions {
		isolated, accepted := false, false
		for _, p := range policies {
			if p.Direction == d {
				isolated, accepted = isolated || !p.Accept, accepted || p.Accept && t.Port == connectivity.Port
			}
		}
		if isolated && !accepted && !f.unenforced {
			return probe.Answer{State: probe.Timeout, Error: "i/o timeout"}
		}
	}
	client := f.place(from.Name)[0]
	if err == nil && a.Is6() {
		client = f.place(from.Name)[1]
	}
	return probe.Answer{State: probe.Answered, Server: to, Client: client}
}
