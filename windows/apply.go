// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/denylist"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// applyOnce makes one attempt of Apply. The keys of refused are the endpoints whose lists HNS refuses; a
// value is true if the list names SCTP.
func (b *Backend) applyOnce(ctx context.Context, s *model.State) (unsupported []model.Unsupported, refused map[model.EndpointID]bool, err error) {
	b.adoptAddresses()
	unfinished := b.hns.Unfinished() // before anything is read
	maps.DeleteFunc(b.late, func(o hns.Object, _ []hns.ACL) bool { return !unfinished[o] })
	n, list, err := b.ensureNetwork(ctx)
	if n == nil || hns.Code(err) == hns.CodeTimeout { // each further call could take as long
		return nil, nil, fmt.Errorf("apply: %w", err)
	}
	if err != nil {
		err = fmt.Errorf("apply: %w", err)
	}
	b.deriveNAT(s, time.Now())
	unsupported, failed := b.applyComponents(ctx, s)
	failed = errors.Join(err, failed)
	have := b.read(n, list)
	overBlocked, plan := b.plan(have, s)
	unsupported = append(unsupported, overBlocked...)
	x := &execution{Backend: b, have: have, unfinished: unfinished, failed: make(map[int]error),
		errs: make(map[model.EndpointID][]error), refused: make(map[model.EndpointID]bool)}
	x.plan = plan
	x.repairSets()
	x.noteWrites(s)
	if err := x.run(ctx); err != nil {
		return unsupported, x.refused, fmt.Errorf("apply: %w", errors.Join(err, failed))
	}
	if x.wrote {
		if err := x.compare(ctx); err != nil {
			return unsupported, x.refused, errors.Join(fmt.Errorf("apply: %w", err), failed)
		}
	}
	x.blameUnfinished()
	x.noteInstalled(s)
	return unsupported, x.refused, errors.Join(x.err(), failed)
}

// plan computes the desired objects of HNS and the writes that lead there. Endpoints that the State does
// not contain are denied all traffic.
func (b *Backend) plan(have *inventory, s *model.State) ([]model.Unsupported, *acl.Plan) {
	platform := b.Features().Platform
	wanted := have.only(s)
	var overBlocked []model.Unsupported
	if b.sctp.refused {
		wanted, overBlocked = acl.WithoutSCTP(wanted, platform)
	}
	lowering := b.lowerer.Lower(wanted, b.options, platform)
	unsupported := slices.Concat(lowering.Unsupported, overBlocked)
	for id := range have.endpoints {
		if _, named := s.Policy.Endpoints[id]; !named {
			lowering.Lists[id] = acl.DenyAll()
		}
	}
	plan := acl.NewPlan(&have.Ruleset, lowering.Keep(&have.Ruleset))
	b.planPreceding(have, plan)
	return unsupported, plan
}

// planPreceding adds a write of every list whose preceding ACLs differ, unless the plan writes it anyway.
func (b *Backend) planPreceding(have *inventory, plan *acl.Plan) {
	written := make(map[model.EndpointID]bool)
	for _, s := range plan.Steps {
		written[s.Endpoint] = written[s.Endpoint] || s.Action == acl.WriteList
	}
	for _, id := range sortedIDs(plan.Target.Lists) {
		if list := plan.Target.Lists[id]; !written[id] && have.endpoints[id] != nil && !acl.Equal(have.before[id], b.precedingOf(list)) {
			plan.Steps = append(plan.Steps, acl.Step{Action: acl.WriteList, Endpoint: id, List: list})
		}
	}
}

// inventory is what HNS holds.
type inventory struct {
	acl.Ruleset
	network   *hns.Network
	endpoints map[model.EndpointID]*hns.Endpoint
	// before are the ACLs that precede those of policy. Lists do not contain them.
	before map[model.EndpointID][]hns.ACL
	// sets are our sets as HNS stores them; broken are those with content that this package never writes.
	sets   map[string]hns.Policy
	broken map[string]bool
}

// read reads our endpoints with their ACLs, and our sets.
func (b *Backend) read(n *hns.Network, list []hns.Endpoint) *inventory {
	inv := &inventory{network: n, endpoints: make(map[model.EndpointID]*hns.Endpoint), before: make(map[model.EndpointID][]hns.ACL),
		sets: make(map[string]hns.Policy), broken: make(map[string]bool)}
	inv.Lists, inv.Sets, inv.Unknown = make(map[model.EndpointID][]hns.ACL), make(map[string][]netip.Addr), make(map[string]bool)
	for i := range list {
		e := &list[i]
		id, ours := b.owner(e.Name)
		if !ours || e.Remote() || inv.endpoints[id] != nil {
			continue
		}
		acls, err := e.ACLs()
		if err != nil {
			b.log.Warn("an endpoint has ACLs that cannot be read; they are replaced", "endpoint", e.Name, "error", err)
		}
		hns.SortACLs(acls)
		inv.endpoints[id] = e
		inv.before[id], inv.Lists[id] = denylist.Split(acls)
	}
	for _, p := range n.Policies {
		var set hns.SetPolicy
		if !p.Is(hns.TypeSet) || p.Decode(&set) != nil || !acl.OwnSet(set.ID) {
			continue
		}
		members, err := acl.DecodeSet(set)
		if _, twice := inv.Sets[set.ID]; twice {
			err = errors.New("hns lists it twice")
		}
		if err != nil {
			b.log.Warn("a set has content that Isthmus does not write; it is replaced", "set", set.ID, "error", err)
			inv.broken[set.ID], inv.Unknown[set.ID] = true, true
		}
		inv.Sets[set.ID] = members
		inv.sets[set.ID] = p
	}
	return inv
}

// only returns the State reduced to the endpoints that HNS has.
func (inv *inventory) only(s *model.State) *model.State {
	c := *s
	c.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState, len(s.Policy.Endpoints))
	for id, e := range s.Policy.Endpoints {
		if inv.endpoints[id] != nil {
			c.Policy.Endpoints[id] = e
		}
	}
	return &c
}

// execution is one run of a plan.
type execution struct {
	*Backend
	have *inventory
	plan *acl.Plan
	// unfinished are objects with a write of an earlier call that has not returned.
	unfinished map[hns.Object]bool
	// silent are the errors of this run's calls without an answer.
	silent []error
	failed map[int]error // by step
	done   int           // steps that were done, or could not be
	errs   map[model.EndpointID][]error
	wrote  bool
	// refused are the endpoints whose lists HNS refuses; true if they name SCTP.
	refused map[model.EndpointID]bool
}

// repairSets adds a write of every set with wrong content that the plan would leave alone.
func (x *execution) repairSets() {
	for _, s := range x.plan.Steps {
		if s.Action != acl.WriteList {
			delete(x.have.broken, s.Set)
		}
	}
	for set := range x.have.broken {
		if members, ok := x.plan.Target.Sets[set]; ok {
			x.plan.Steps = append(x.plan.Steps, acl.Step{Action: acl.RemoveMembers, Set: set, Members: members})
		}
	}
}

// run executes the steps. A failed step prevents the steps that need it. A step that only waits for it runs
// if it denies and allows nothing.
func (x *execution) run(ctx context.Context) error {
	for i, s := range x.plan.Steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		x.done = i
		err := x.blocked(s)
		if err == nil {
			x.config.Step(s.Action.String())
			err = x.do(ctx, s)
			x.wrote = true
			x.noteRefusal(s, err)
		}
		if err == nil {
			continue
		}
		if hns.Code(err) == hns.CodeTimeout {
			x.silent = append(x.silent, err)
		}
		x.failed[i] = err
		x.blame(s, err)
	}
	return ctx.Err()
}

// blocked returns the error that prevents a step, or nil.
func (x *execution) blocked(s acl.Step) error {
	if len(x.silent) > 1 {
		return fmt.Errorf("not done because hns does not answer: %w", x.silent[0])
	}
	if o, ok := x.uncertain(s.List); ok {
		return fmt.Errorf("not done while an earlier write of %s has not returned", o)
	}
	if o, ok := x.wouldShow(s); ok {
		return fmt.Errorf("not done while an earlier write of %s has not returned", o)
	}
	for _, i := range s.Needs {
		if err := x.failed[i]; err != nil {
			return fmt.Errorf("not done because of an earlier error: %w", err)
		}
	}
	for _, i := range s.Waits {
		if err := x.failed[i]; err != nil && !s.Tightens {
			return fmt.Errorf("not done because of an earlier error: %w", err)
		}
	}
	return nil
}

// uncertain returns a set of a list whose members may still change through an unfinished write.
func (x *execution) uncertain(list []hns.ACL) (hns.Object, bool) {
	for o := range x.unfinished {
		if set, ok := o.Set(); ok && acl.RefersTo(list, set) {
			return o, true
		}
	}
	return "", false
}

// wouldShow returns a list that an unfinished write may still put in force, and in which the step could
// allow something. The step's place in the plan is then wrong.
func (x *execution) wouldShow(s acl.Step) (hns.Object, bool) {
	if s.Action == acl.WriteList || (s.Tightens && s.Action != acl.RemoveSet) {
		return "", false
	}
	for o, list := range x.late {
		if x.unfinished[o] && acl.RefersTo(list, s.Set) {
			return o, true
		}
	}
	return "", false
}

// blameUnfinished records an error at every endpoint whose ACLs may still change through an unfinished
// write.
func (x *execution) blameUnfinished() {
	for id, e := range x.have.endpoints {
		o, ok := x.uncertain(append(slices.Clip(x.have.Lists[id]), x.plan.Target.Lists[id]...))
		if own := hns.EndpointObject(e.ID); x.unfinished[own] {
			o, ok = own, true
		}
		if ok && len(x.errs[id]) == 0 {
			x.errs[id] = append(x.errs[id], fmt.Errorf("an earlier write of %s has not returned; what is in force is not certain", o))
		}
	}
}

// blame records an error at every endpoint that it concerns.
func (x *execution) blame(s acl.Step, err error) {
	if s.Action == acl.WriteList {
		x.errs[s.Endpoint] = append(x.errs[s.Endpoint], err)
		return
	}
	if s.Action == acl.RemoveSet || s.Action == acl.Confirm { // steps that need a confirmation are blamed themselves
		x.log.Warn(s.Action.String()+"; retrying", "set", s.Set, "error", err)
		return
	}
	for id, list := range x.plan.Target.Lists {
		if acl.RefersTo(list, s.Set) {
			x.errs[id] = append(x.errs[id], fmt.Errorf("set %s: %w", s.Set, err))
		}
	}
}

// do makes one write and checks the object that HNS returns.
func (x *execution) do(ctx context.Context, s acl.Step) error {
	switch s.Action {
	case acl.WriteList:
		return x.writeList(ctx, s)
	case acl.Confirm:
		return x.confirm(ctx)
	case acl.RemoveSet:
		_, err := x.hns.ModifyNetwork(ctx, x.have.network.ID, hns.Remove, x.have.sets[s.Set])
		if errors.Is(err, hns.ErrGone) {
			return nil
		}
		return err
	}
	request := hns.Update
	if s.Make {
		request = hns.Add
	}
	set := acl.EncodeSet(s.Set, s.Members)
	n, err := x.hns.ModifyNetwork(ctx, x.have.network.ID, request, set.Policy())
	if s.Make && errors.Is(err, hns.ErrConflict) {
		// A call that did not answer in time has created the set after all.
		n, err = x.hns.ModifyNetwork(ctx, x.have.network.ID, hns.Update, set.Policy())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Action, err)
	}
	held, err := n.HoldsSet(set)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Action, err)
	}
	if !held {
		return fmt.Errorf("%s: hns accepted set %s but did not store it", s.Action, s.Set)
	}
	return nil
}

// confirm reads which of the lists that were written HNS shows. The others count as failed, so no step opens what the
// lists before them must not meet.
func (x *execution) confirm(ctx context.Context) error {
	list, err := x.listEndpoints(ctx, x.have.network.ID)
	if err != nil {
		return err
	}
	now := x.read(x.have.network, list)
	for i, s := range x.plan.Steps[:x.done] {
		if s.Action == acl.WriteList && x.failed[i] == nil && now.endpoints[s.Endpoint] != nil && !acl.Equal(now.Lists[s.Endpoint], s.List) {
			x.failed[i] = errors.New("hns did not store the acls that were written")
			x.blame(s, x.failed[i])
		}
	}
	return nil
}

// writeList replaces the ACLs of an endpoint. If HNS does not find the endpoint it looks it up by name: HNS
// may have restarted and assigned another id.
func (x *execution) writeList(ctx context.Context, s acl.Step) error {
	e := x.have.endpoints[s.Endpoint]
	err := x.replaceACLs(ctx, e, s.List)
	if !errors.Is(err, hns.ErrGone) {
		return err
	}
	list, listErr := x.listEndpoints(ctx, x.have.network.ID)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	if e = findNamed(list, e.Name); e == nil {
		x.log.Info("an endpoint was removed before its ACLs were written", "endpoint", s.Endpoint)
		return nil
	}
	x.have.endpoints[s.Endpoint] = e
	return x.replaceACLs(ctx, e, s.List)
}

// replaceACLs writes the list in one call. It sends all other policies again, because it is not documented
// whether HNS would keep them.
func (x *execution) replaceACLs(ctx context.Context, e *hns.Endpoint, list []hns.ACL) error {
	var policies []hns.Policy
	for _, p := range e.Policies {
		if !p.Is(hns.TypeACL) {
			policies = append(policies, p)
		}
	}
	all := slices.Concat(x.precedingOf(list), list)
	for _, a := range all {
		policies = append(policies, a.Policy())
	}
	answer, err := x.writePolicies(ctx, e.ID, policies)
	if err != nil {
		return fmt.Errorf("write %d acls: %w", len(all), remedied(err))
	}
	if acls, err := answer.ACLs(); err != nil || !acl.Equal(acls, all) {
		return errors.Join(fmt.Errorf("hns accepted %d acls but stored %d different ones", len(all), len(acls)), err)
	}
	return nil
}

// writePolicies replaces all policies of an endpoint. If the write may still take effect after it has failed, it
// records the list of ACLs as late.
func (b *Backend) writePolicies(ctx context.Context, id string, policies []hns.Policy) (hns.Endpoint, error) {
	answer, err := b.hns.ModifyEndpoint(ctx, id, hns.Update, policies...)
	// The call may also have ended with ctx, without a code. Busy: another write has not returned, not this one.
	if o := hns.EndpointObject(id); err != nil && hns.Code(err) != hns.CodeBusy && b.hns.Unfinished()[o] {
		b.late[o], _ = (&hns.Endpoint{Policies: policies}).ACLs()
	}
	return answer, err
}

// compare reads everything again. A difference is an error although the write seemed to succeed.
func (x *execution) compare(ctx context.Context) error {
	n, err := x.findNetwork(ctx)
	if err != nil {
		return err
	}
	if n == nil {
		return fmt.Errorf("hns network %q vanished while it was written", x.config.Network)
	}
	list, err := x.listEndpoints(ctx, n.ID)
	if err != nil {
		return err
	}
	now := x.read(n, list)
	for id, list := range x.plan.Target.Lists {
		if now.endpoints[id] != nil && len(x.errs[id]) == 0 && !(acl.Equal(now.Lists[id], list) && acl.Equal(now.before[id], x.precedingOf(list))) {
			x.errs[id] = append(x.errs[id], errors.New("hns did not store the acls that were written"))
		}
	}
	for set, members := range x.plan.Target.Sets {
		if got, ok := now.Sets[set]; ok && slices.Equal(got, members) {
			continue
		}
		for id, list := range x.plan.Target.Lists {
			if acl.RefersTo(list, set) && len(x.errs[id]) == 0 && now.endpoints[id] != nil {
				x.errs[id] = append(x.errs[id], fmt.Errorf("hns did not store the written members of set %s", set))
			}
		}
	}
	return nil
}

// err joins the errors of the endpoints.
func (x *execution) err() error {
	var errs []error
	for _, id := range sortedIDs(x.errs) {
		errs = append(errs, &dataplane.EndpointError{ID: id, Err: errors.Join(x.errs[id]...)})
	}
	return errors.Join(errs...)
}

func sortedIDs[V any](m map[model.EndpointID]V) []model.EndpointID {
	ids := make([]model.EndpointID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
