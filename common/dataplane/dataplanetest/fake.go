// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// errClosed is the error of a Fake after Close.
var errClosed = errors.New("data path is closed")

// errConcurrent is the error of a Fake that two goroutines use at once.
var errConcurrent = errors.New("data path is called from two goroutines at once")

// Fault is called before every step of a Fake. If it returns an error the operation fails there. If it
// waits for the context the operation hangs. If it ends the goroutine the operation crashes there, and the
// completed steps stay.
type Fault func(ctx context.Context, step string) error

// Fake is a Backend in memory. It rejects what a real one rejects, executes Plan step by step, and outlives
// the agent that uses it, as a kernel does.
type Fake struct {
	features model.Features
	busy     atomic.Bool // checks the contract, locks nothing

	mu       sync.Mutex
	closed   bool
	fault    Fault
	poison   func(*model.State) error
	gone     map[string]bool    // network namespaces that do not exist
	replaced map[string]int     // how often another network namespace took a path
	foreign  map[[2]string]bool // (namespace, interface) created by another component
	attached map[model.EndpointID]*endpoint
	faces    []dataplane.Interface
	inForce  *model.State
	counters dataplane.Counters
	verdicts map[model.EndpointID][2][2]uint64
	sockets  []model.HostPort
	services []model.HostPort
	// servicesErr is the error of ServicePorts.
	servicesErr error
	log         []string
	applied     int
}

var (
	_ dataplane.Backend      = (*Fake)(nil)
	_ dataplane.SocketLister = (*Fake)(nil)
	_ dataplane.Finder       = (*Fake)(nil)
)

// NewFake returns a data path without attachments.
func NewFake(features model.Features) *Fake {
	return &Fake{features: features, gone: make(map[string]bool), replaced: make(map[string]int), foreign: make(map[[2]string]bool),
		attached: make(map[model.EndpointID]*endpoint)}
}

// SetFault sets the function that is called before every step; nil means no faults.
func (f *Fake) SetFault(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// SetPoison sets a function that Apply calls first. Its error rejects the whole State, as a kernel without
// room does. nil accepts every State.
func (f *Fake) SetPoison(poison func(*model.State) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.poison = poison
}

// Reboot removes all network namespaces, attachments and decisions, as a restart of the node does.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.attached {
		f.gone[e.spec.NetNS] = true
	}
	clear(f.attached)
	f.inForce = nil
}

// RemoveNetNS removes a network namespace with its interfaces, as the end of a sandbox does.
func (f *Fake) RemoveNetNS(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[path] = true
	for _, e := range f.attached {
		if e.spec.NetNS == path {
			clear(e.parts)
		}
	}
}

// ReplaceNetNS removes a network namespace and makes another one at its path, as the reuse of a process ID does.
func (f *Fake) ReplaceNetNS(path string) {
	f.RemoveNetNS(path)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.gone, path)
	f.replaced[path]++
}

// netNSID returns the identity of the network namespace at a path. The caller holds mu.
func (f *Fake) netNSID(path string) string { return fmt.Sprint(path, "#", f.replaced[path]) }

// OccupyInterface adds an interface of another component to a network namespace.
func (f *Fake) OccupyInterface(netns, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign[[2]string{netns, name}] = true
}

// Break removes a part of an attachment, as another program might.
func (f *Fake) Break(id model.EndpointID, part string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.attached[id]; e != nil {
		delete(e.parts, part)
	}
}

// ChangeInPod sets what differs inside of the pod of an attachment.
func (f *Fake) ChangeInPod(id model.EndpointID, what ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.attached[id]; e != nil {
		e.inPod = what
	}
}

// SetCounters sets what Counters returns.
func (f *Fake) SetCounters(c dataplane.Counters) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counters = c
}

// SetVerdicts sets the verdicts of all endpoints that are counted by endpoint.
func (f *Fake) SetVerdicts(v map[model.EndpointID][2][2]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verdicts = v
}

// SetSockets sets what Listening returns.
func (f *Fake) SetSockets(all ...model.HostPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sockets = all
}

// Listening implements SocketLister.
func (f *Fake) Listening() ([]model.HostPort, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	return f.sockets, nil
}

// SetServicePorts sets what ServicePorts returns.
func (f *Fake) SetServicePorts(all ...model.HostPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services = all
}

// FailServicePorts sets the error of ServicePorts.
func (f *Fake) FailServicePorts(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servicesErr = err
}

// ServicePorts implements ServicePortLister.
func (f *Fake) ServicePorts(context.Context) ([]model.HostPort, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	return f.services, f.servicesErr
}

// Reopen undoes Close, for the next agent.
func (f *Fake) Reopen() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = false
}

// Log lists the completed operations, oldest first: "add ID", "delete ID", "apply ID ID ..." with the
// endpoints that the State names.
func (f *Fake) Log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// Applied counts the completed Applies.
func (f *Fake) Applied() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// Decide returns the current verdict for a new flow. An endpoint that the State does not name is denied.
func (f *Fake) Decide(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) model.Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.attached[id] == nil || f.inForce == nil {
		return model.Deny
	}
	return f.inForce.Policy.Decide(id, d, remote, p, port).Verdict
}

// Observed reports whether an endpoint was attached as one that is observed, and whether the State in force says so.
func (f *Fake) Observed(id model.EndpointID) (attached, inForce bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.attached[id]
	return e != nil && e.spec.Observed, f.inForce != nil && f.inForce.Policy.Endpoints[id].Observed
}

// enter begins an operation; leave ends it.
func (f *Fake) enter() error {
	if !f.busy.CompareAndSwap(false, true) {
		return errConcurrent
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		f.busy.Store(false)
		return errClosed
	}
	return nil
}

func (f *Fake) leave() { f.busy.Store(false) }

// step calls the Fault, without holding the lock.
func (f *Fake) step(ctx context.Context, name string) error {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault != nil {
		if err := fault(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// done logs an operation.
func (f *Fake) done(words ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, strings.Join(words, " "))
}

// Features implements Backend.
func (f *Fake) Features() model.Features { return f.features }

// Idle implements Backend.
func (f *Fake) Idle(context.Context) (bool, error) { return false, nil }

// Counters implements Backend.
func (f *Fake) Counters(context.Context) (dataplane.Counters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return dataplane.Counters{}, errClosed
	}
	return f.counters, nil
}

// Close implements Backend.
func (f *Fake) Close() error {
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}
