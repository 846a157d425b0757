// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Apply implements dataplane.Backend. A list that gives the right verdicts stays, since a write may reset
// connections. Watch explains drops by the State.
func (b *Backend) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	if b.flows == nil {
		return b.apply(ctx, s)
	}
	b.flows.Begin(s)
	unsupported, err := b.apply(ctx, s)
	if err == nil {
		b.flows.Applied(s)
	}
	return unsupported, err
}

func (b *Backend) apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	if b.Outdated() {
		b.options.Node = b.nodeAddresses()
		b.deny.SetExempt(b.options.Node)
	}
	unsupported, err := b.deny.Apply(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	all, err := b.scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	wanted, more := b.lower(all, s)
	b.wanted = wanted
	opened, err := b.enforce(ctx, all)
	for _, id := range slices.Sorted(maps.Keys(opened)) {
		for _, a := range opened[id] {
			e := b.registry.Endpoints[id]
			more = append(more, model.Unsupported{Policy: model.Origin{Kind: "Pod", Namespace: e.Pod.Namespace, Name: e.Pod.Name}, Direction: direction(a), Rule: -1,
				Construct: "ACL of another program", OS: model.Windows, Platform: b.Features().Platform, Effect: model.OverBlocks,
				Reason: fmt.Sprintf("the ACL %s leaves no room for policy, so %s is denied: remove it, or give it a higher priority number", describe(a), direction(a))})
		}
	}
	return slices.Concat(unsupported, more), err
}

func direction(a hns.ACL) model.Direction {
	if a.Direction == hns.In {
		return model.Ingress
	}
	return model.Egress
}

// lower returns the lists of the endpoints that HNS has. SCTP is left out: some HNS refuse a list that names it.
func (b *Backend) lower(all []found, s *model.State) (map[model.EndpointID][]hns.ACL, []model.Unsupported) {
	reduced := *s
	reduced.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState)
	have := &acl.Ruleset{Lists: make(map[model.EndpointID][]hns.ACL)}
	lists := make(map[model.EndpointID][]hns.ACL)
	for id, e := range b.registry.Endpoints {
		state, named := s.Policy.Endpoints[id]
		if lists[id] = acl.DenyAll(); named {
			reduced.Policy.Endpoints[id] = state
		}
		if f := locate(all, e); f != nil && len(b.deny.ACLs()) == 0 { // else the list in force contains deny lists
			if p, err := split(f.Policies); err == nil {
				have.Lists[id] = p.own
			}
		}
	}
	platform := b.Features().Platform
	state, without := acl.WithoutSCTP(&reduced, platform)
	lowering := b.lowerer.Lower(state, b.options, platform)
	for id, list := range lowering.Keep(have).Lists {
		if !acl.Equal(list, acl.DenyAll()) {
			list = slices.Concat(b.deny.ACLs(), list)
		}
		lists[id] = list
	}
	return lists, slices.Concat(lowering.Unsupported, without)
}

// enforce writes every list that is not in force. It returns the ACLs of others because of which a direction is
// denied, by attachment.
func (b *Backend) enforce(ctx context.Context, all []found) (map[model.EndpointID][]hns.ACL, error) {
	opened := make(map[model.EndpointID][]hns.ACL)
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(b.registry.Endpoints)) {
		want, known := b.wanted[id]
		e := b.registry.Endpoints[id]
		f := locate(all, e)
		if f == nil || !known {
			delete(b.refused, id)
			if why := ambiguous(all, e); why != "" {
				b.refused[id] = why
			} else if s := stray(all, e); f == nil && s != nil {
				errs = append(errs, b.closeStray(ctx, id, s))
			}
			continue
		}
		if f.ID != e.HNS {
			b.log.Info("another program has recreated an endpoint", "endpoint", id, "hns", f.Name)
			e.HNS = f.ID
			errs = append(errs, b.registry.put(id, e))
		}
		opens, err := b.write(ctx, f, want)
		if errors.Is(err, hns.ErrGone) {
			continue // its plugin has removed it
		}
		before := b.refused[id]
		if delete(b.refused, id); err != nil {
			if b.refused[id] = err.Error(); err.Error() != before {
				b.log.Warn("policy is not enforced on an endpoint; retrying", "endpoint", id, "error", err)
			}
			errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
			continue
		}
		if len(opens) > 0 {
			opened[id] = opens
		}
		b.note(id, f, opens)
	}
	return opened, errors.Join(errs...)
}

// closeStray denies everything on an endpoint that is not where its attachment was: packets of another pod could pass there.
func (b *Backend) closeStray(ctx context.Context, id model.EndpointID, f *found) error {
	if _, err := b.write(ctx, f, acl.DenyAll()); err != nil && !errors.Is(err, hns.ErrGone) {
		return &dataplane.EndpointError{ID: id, Err: err}
	}
	return nil
}

// note records what is beside our ACLs.
func (b *Backend) note(id model.EndpointID, f *found, opens []hns.ACL) {
	p, _ := split(f.Policies) // the write has read them
	var names []string
	for _, a := range p.others {
		names = append(names, describe(a))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.facts, id)
	if len(names) == 0 {
		return
	}
	text := fmt.Sprintf("foreign acls: hns endpoint %s of network %s (%s) keeps %d: %s", f.Name, f.network.Name, f.network.Type, len(names), strings.Join(names[:min(len(names), 8)], ", "))
	if len(opens) > 0 {
		text += fmt.Sprintf("; because of %s everything in its direction is denied", describe(opens[0]))
	}
	b.facts[id] = text
}

// write puts a list in force beside the policies of others, unless it is. Those are sent as HNS listed them. What
// another program writes between the listing and this call is lost; the next comparison does not know it.
func (b *Backend) write(ctx context.Context, f *found, own []hns.ACL) (opens []hns.ACL, err error) {
	p, err := split(f.Policies)
	if err != nil {
		return nil, unfit{err}
	}
	list, opens, err := compose(own, p.others)
	if err != nil {
		return nil, unfit{err}
	}
	if acl.Equal(p.own, list) {
		return opens, nil
	}
	request := slices.Clone(p.kept)
	for _, a := range list {
		request = append(request, a.Policy())
	}
	answer, err := b.hns.ModifyEndpoint(ctx, f.ID, hns.Update, request...)
	if err != nil {
		return nil, fmt.Errorf("write %d acls: %w", len(list), err)
	}
	now, err := split(answer.Policies)
	if err != nil || !acl.Equal(now.own, list) {
		return nil, errors.Join(fmt.Errorf("hns accepted %d acls but stored %d different ones", len(list), len(now.own)), err)
	}
	if lost := missing(p.kept, now.kept); lost != "" {
		return nil, fmt.Errorf("hns lost the policy %s of another program: restart the pod", lost)
	}
	return opens, nil
}

// missing returns a policy that is not among others; "" if there is none. HNS may add members.
func missing(wanted, have []hns.Policy) string {
	left := slices.Clone(have)
	for _, w := range wanted {
		i := slices.IndexFunc(left, func(p hns.Policy) bool { return p.Is(w.Type) && sameJSON(p.Settings, w.Settings) })
		if i < 0 {
			return fmt.Sprintf("%s %s", w.Type, w.Settings)
		}
		left = slices.Delete(left, i, i+1)
	}
	return ""
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	if bytes.Equal(a, b) {
		return true
	}
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, errP := json.Marshal(x)
	q, errQ := json.Marshal(y)
	return errP == nil && errQ == nil && bytes.Equal(p, q)
}

// Idle implements dataplane.Backend. It follows endpoints that other programs recreate or change, as far as Follow does not see it, and the
// addresses of the host, and reads the load balancers. An error delays the next call, so an endpoint that cannot have its policy is a fault
// instead, unless HNS does not answer, which holds up requests.
func (b *Backend) Idle(ctx context.Context) (more bool, err error) {
	b.addresses.Sync(time.Now())
	err = b.compare(ctx) // policy first: the load balancers may take long to read
	return false, errors.Join(err, b.readBalancers(ctx))
}

// unfit is the error of an endpoint whose policies leave no room for ours. HNS was not called.
type unfit struct{ error }

// delays reports whether joined errors of endpoints are a reason to wait: HNS did not answer, or did not store what it accepted.
func delays(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), delays)
	}
	if _, ok := errors.AsType[unfit](err); ok {
		return false
	}
	code := hns.Code(err)
	return code == 0 || code == hns.CodeTimeout || code == hns.CodeBusy
}

// unfitOnly reports whether all joined errors of endpoints are of this kind. Another listing does not change them.
func unfitOnly(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !unfitOnly(err) })
	}
	_, ok := errors.AsType[unfit](err)
	return ok
}

// readBalancers reads the load balancers of kube-proxy once a minute, and notes for Counters what they show.
func (b *Backend) readBalancers(ctx context.Context) error {
	err := b.balancers.Sync(ctx, time.Now())
	facts := b.balancers.Facts()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.balanced = facts
	return err
}
