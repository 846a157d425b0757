// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// question is a question that calls alone answer. It returns an error if the check itself failed.
type question struct {
	id, text string
	ask      func(context.Context) (Answer, error)
}

// probe runs all checks that need no packets.
func (b *bench) probe(ctx context.Context) ([]Answer, error) {
	questions := []question{
		{"d", "does an Update of ACLs keep other policies", b.updateKeeps},
		{"e", "version of this release", func(context.Context) (Answer, error) { return Answer{Answer: b.version.String()}, nil }},
		{"h", "are tiers of ACLs taken", b.takesTiers},
		{"i", "how many rules and members are taken, and how fast", b.limits},
		{"j", "are priorities out of range, and one twice, taken", b.priorities},
		{"k", "are IPv6 addresses taken in ACLs", b.takesIPv6},
		{"l", "are several sets in one member taken", b.takesTwoSets},
		{"n", "is a set without members taken", b.takesEmptySet},
		{"o", "are sets taken at either side", b.takesSets},
		{"w", "may ACLs name SCTP, alone and beside TCP and UDP", b.takesSCTP},
		{"z", "does an endpoint keep the DNS servers and search domains of its creation", b.keepsDNS},
	}
	var answers []Answer
	for _, q := range questions {
		a, err := q.ask(ctx)
		if err == nil {
			err = b.clean(ctx)
		}
		if err != nil {
			return answers, fmt.Errorf("question %s: %w", q.id, err)
		}
		a.ID, a.Question = q.id, q.text
		answers = append(answers, a)
	}
	return append(answers, notAsked()...), nil
}

// notAsked are the questions that this program cannot check.
func notAsked() []Answer {
	return []Answer{
		{ID: "c", Question: "do ACLs see the pod behind a service", Detail: "needs kube-proxy: allow a pod only the address of another and call that by its ClusterIP"},
		{ID: "g", Question: "may what a load balancer refers to be deleted", Detail: "needs kube-proxy: delete the pod of a service with one pod, and look at the agent's log"},
		{ID: "m", Question: "other filters of listings", Detail: "Isthmus does not use them"},
		{ID: "q", Question: "do the ACLs of a new endpoint hold before its first packet", Detail: "needs a container that sends from its first instruction"},
		{ID: "r", Question: "does the state of a flow last 240 s", Detail: "nothing depends on it"},
		{ID: "u", Question: "does one Update change all ACLs at once, or in an order that opens nothing", Detail: "needs a sender that never pauses: rewrite 200 rules of which the last allows it, and look for a packet that neither list allows"},
		{ID: "y", Question: "do probes come from an address of the host", Detail: "needs a kubelet: isolate a pod with a readiness probe, and look whether it becomes ready"},
	}
}

// taken distinguishes an error that is the answer of HNS from one of a call that did
// not reach HNS, which it returns.
func taken(err error) (string, error) {
	switch {
	case err == nil:
		return "taken", nil
	case errors.Is(err, hns.ErrRefused), errors.Is(err, hns.ErrConflict):
		return fmt.Sprintf("refused (0x%08X)", hns.Code(err)), nil
	}
	return "", err
}

// rule is a Switch rule for everything.
func rule(d hns.Direction, action hns.Action, priority uint16) hns.ACL {
	return hns.ACL{ID: "conformance", Protocols: "256", Action: action, Direction: d, RuleType: hns.Switch, Priority: priority}
}

func (b *bench) updateKeeps(ctx context.Context) (Answer, error) {
	nat := hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/8"}})
	if _, err := b.hns.ModifyEndpoint(ctx, b.endpoint.ID, hns.Update, append(wrap(acl.DenyAll()), nat)...); err != nil {
		text, err := taken(err)
		return Answer{Detail: "an OutBoundNAT policy beside ACLs was " + text}, err
	}
	e, err := b.hns.ModifyEndpoint(ctx, b.endpoint.ID, hns.Update, wrap(acl.DenyAll())...)
	if err != nil {
		return Answer{}, err
	}
	for _, p := range e.Policies {
		if p.Is(hns.TypeOutBoundNAT) {
			return Answer{Answer: "kept", Detail: "OutBoundNAT was still there after an Update of ACLs alone"}, nil
		}
	}
	return Answer{Answer: "replaced", Detail: "OutBoundNAT was gone after an Update of ACLs alone"}, nil
}

// keepsDNS reads the resolver of the endpoint after lists were written to it.
func (b *bench) keepsDNS(ctx context.Context) (Answer, error) {
	if b.dnsRefused != nil {
		return Answer{Answer: "refused", Detail: b.dnsRefused.Error(), Wrong: true}, nil
	}
	list, err := b.hns.Endpoints(ctx, b.network.ID)
	if err != nil {
		return Answer{}, err
	}
	i := slices.IndexFunc(list, func(e hns.Endpoint) bool { return hns.SameID(e.ID, b.endpoint.ID) })
	if i < 0 {
		return Answer{}, fmt.Errorf("endpoint %s is gone", endpointName)
	}
	have := list[i].DNS
	a := Answer{Answer: "kept", Detail: fmt.Sprintf("servers %q, search domains %q, options %q", have.ServerList, have.Search, have.Options)}
	if !slices.Equal(have.ServerList, benchDNS.ServerList) || !slices.Equal(have.Search, benchDNS.Search) {
		a.Answer, a.Wrong = "changed", true
	}
	return a, nil
}

func (b *bench) takesTiers(ctx context.Context) (Answer, error) {
	tier := hns.MakePolicy(hns.TypeTierACL, map[string]any{"Name": "conformance", "Direction": "In", "Order": 1,
		"TierAclRules": []map[string]any{{"Id": "conformance", "Protocols": "6", "TierAclRuleAction": "Pass", "Priority": 1000}}})
	_, err := b.hns.ModifyEndpoint(ctx, b.endpoint.ID, hns.Update, append(wrap(acl.DenyAll()), tier)...)
	text, err := taken(err)
	if err != nil || text != "taken" {
		return Answer{Answer: text, Detail: "one tier beside ACLs"}, err
	}
	// Remove what only a removal clears, because it would affect later checks.
	_, err = b.hns.ModifyEndpoint(ctx, b.endpoint.ID, hns.Remove, tier)
	removed, err := taken(err)
	return Answer{Answer: text, Detail: "one tier beside ACLs; its removal: " + removed}, err
}

// slow is the duration of a call after which no larger one is tried.
const slow = time.Minute

func (b *bench) limits(ctx context.Context) (Answer, error) {
	var found []string
	a := Answer{Detail: "seconds of one call"}
	for _, n := range []int{10, 100, 300, 1000} {
		list := acl.DenyAll()
		for i := range n {
			r := rule(hns.In, hns.Allow, uint16(2000+i))
			r.Protocols, r.LocalPorts = "6", fmt.Sprint(1000+2*i)
			list = append(list, r)
		}
		// Priorities ascend from the first on; the terminal rules stay last.
		for i := range list[:2] {
			list[i].Priority = uint16(60000 + i)
		}
		began := time.Now()
		_, err := b.list(ctx, list...)
		text, err := taken(err)
		if err != nil {
			return Answer{}, err
		}
		found = append(found, fmt.Sprintf("%d rules %s in %.2f", n, text, time.Since(began).Seconds()))
		// acl.Options.MaxRules of a node with defaults is 1000, Host rules apart.
		a.Wrong = a.Wrong || text != "taken"
		if text != "taken" || time.Since(began) > slow {
			break
		}
	}
	if b.version.Supports(hns.Sets) {
		more, wrong, err := b.setLimits(ctx)
		if err != nil {
			return Answer{}, err
		}
		found, a.Wrong = append(found, more...), a.Wrong || wrong
	}
	a.Answer = strings.Join(found, ", ")
	return a, nil
}

func (b *bench) setLimits(ctx context.Context) (found []string, wrong bool, err error) {
	for _, n := range []int{10, 1000, 4000} {
		members := make([]netip.Addr, n)
		for i := range members {
			members[i] = netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})
		}
		began := time.Now()
		held, err := b.set(ctx, acl.EncodeSet("isthmus-conformance0-v4", members))
		text, err := taken(err)
		if err != nil {
			return nil, false, err
		}
		if text == "taken" && !held {
			text = "taken but not held"
		}
		found = append(found, fmt.Sprintf("a set of %d %s in %.2f", n, text, time.Since(began).Seconds()))
		if text != "taken" || time.Since(began) > slow {
			return found, text != "taken", nil
		}
	}
	return found, false, nil
}

func (b *bench) priorities(ctx context.Context) (Answer, error) {
	var found []string
	for _, priorities := range [][]uint16{{99}, {65501}, {2000, 2000}} {
		var list []hns.ACL
		for i, p := range priorities {
			r := rule(hns.In, []hns.Action{hns.Allow, hns.Block}[i], p)
			list = append(list, r)
		}
		_, err := b.list(ctx, list...)
		text, err := taken(err)
		if err != nil {
			return Answer{}, err
		}
		found = append(found, fmt.Sprintf("%v %s", priorities, text))
	}
	return Answer{Answer: strings.Join(found, ", "), Detail: "none of these is ever written by Isthmus"}, nil
}

// addressed tries a list with a rule for local and remote addresses before its
// end.
func (b *bench) addressed(ctx context.Context, d hns.Direction, local, remote string) (string, error) {
	r := rule(d, hns.Allow, 500)
	r.LocalAddresses, r.RemoteAddresses = local, remote
	_, err := b.list(ctx, append([]hns.ACL{r}, acl.DenyAll()...)...)
	return taken(err)
}

func (b *bench) takesIPv6(ctx context.Context) (Answer, error) {
	text, err := b.addressed(ctx, hns.In, "", "fd00::/64,fd00:1::5")
	a := Answer{Answer: text, Detail: "an In rule for a prefix and an address; written by Isthmus from HNS 11.10 on"}
	a.Wrong = b.version.Supports(hns.DualStack) && text != "taken"
	return a, err
}

// takesSCTP also checks that HNS keeps the protocol.
func (b *bench) takesSCTP(ctx context.Context) (Answer, error) {
	var found []string
	a := Answer{Detail: "if not, Isthmus denies SCTP where policy does not allow everything"}
	for _, protocols := range []string{"132", "6,17,132"} {
		r := rule(hns.In, hns.Allow, 500)
		r.Protocols = protocols
		stored, err := b.list(ctx, append([]hns.ACL{r}, acl.DenyAll()...)...)
		text, err := taken(err)
		if err != nil {
			return Answer{}, err
		}
		if text == "taken" && !acl.NamesSCTP(stored) {
			text = "taken but not held"
		}
		found = append(found, fmt.Sprintf("%s %s", protocols, text))
		a.Wrong = a.Wrong || text != "taken"
	}
	a.Answer = strings.Join(found, "; ")
	return a, nil
}

// twoSets makes two sets, or says why there are none.
func (b *bench) twoSets(ctx context.Context) (ids []string, why string, err error) {
	if !b.version.Supports(hns.Sets) {
		return nil, "this HNS has no sets (13.0 has)", nil
	}
	for i, a := range []string{"10.99.0.1", "10.99.0.2"} {
		id := fmt.Sprintf("isthmus-conformance%d-v4", i)
		if _, err := b.set(ctx, acl.EncodeSet(id, []netip.Addr{netip.MustParseAddr(a)})); err != nil {
			text, err := taken(err)
			return nil, "a set was " + text, err
		}
		ids = append(ids, id)
	}
	return ids, "", nil
}

func (b *bench) takesTwoSets(ctx context.Context) (Answer, error) {
	ids, why, err := b.twoSets(ctx)
	if err != nil || why != "" {
		return Answer{Detail: why}, err
	}
	text, err := b.addressed(ctx, hns.Out, "", strings.Join(ids, ","))
	return Answer{Answer: text, Detail: "Isthmus writes one set a member; packets tell what two match"}, err
}

func (b *bench) takesEmptySet(ctx context.Context) (Answer, error) {
	if !b.version.Supports(hns.Sets) {
		return Answer{Detail: "this HNS has no sets (13.0 has)"}, nil
	}
	const id = "isthmus-conformance0-v4"
	_, err := b.set(ctx, hns.SetPolicy{ID: id, Name: id, PolicyType: hns.IPSet})
	text, err := taken(err)
	return Answer{Answer: text, Detail: "Isthmus puts 127.0.0.1 into such sets"}, err
}

func (b *bench) takesSets(ctx context.Context) (Answer, error) {
	ids, why, err := b.twoSets(ctx)
	if err != nil || why != "" {
		return Answer{Detail: why}, err
	}
	in, err := b.addressed(ctx, hns.In, ids[0], "")
	if err != nil {
		return Answer{}, err
	}
	out, err := b.addressed(ctx, hns.Out, "", ids[0])
	return Answer{Answer: fmt.Sprintf("In, LocalAddresses: %s; Out, RemoteAddresses: %s", in, out),
		Detail: "packets tell which side they match", Wrong: in != "taken" || out != "taken"}, err
}
