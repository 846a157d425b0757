// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// pod is one end of the packets: an endpoint in a namespace with a compartment.
type pod struct {
	hns.Endpoint
	compartment uint32
	ip          netip.Addr
}

// packet is a packet from one pod to another.
type packet struct {
	protocol model.Protocol // TCP or UDP
	port     uint16         // of the receiver
}

// connectTime allows for two lost SYNs.
const connectTime = 5 * time.Second

// adapter is the interface of a pod.
type adapter struct {
	mtu       int        // in bytes
	linkLocal netip.Addr // with the zone of the compartment; invalid without IPv6
}

// wire sends packets between pods.
type wire interface {
	// Send sends a packet from one pod to another that waits for it, and reports whether it arrives in time. For TCP it
	// opens a connection.
	Send(ctx context.Context, from, to pod, p packet, wait time.Duration) (bool, error)
	// Stream sends as much as it can from one pod to a TCP port of another, and returns how many bytes a second arrive.
	Stream(ctx context.Context, from, to pod, port uint16, length time.Duration) (float64, error)
	// Adapter returns the interface of a pod; its zero value if there is none.
	Adapter(of pod) (adapter, error)
	// Events returns a session of ETW that is not started.
	Events() (etw.Source, error)
}

// packetQuestion is a question that packets from A to B answer.
type packetQuestion struct {
	id, text string
	sets     bool // needs sets
	ask      func(*pair, context.Context) (Answer, error)
}

func packetQuestions() []packetQuestion {
	return []packetQuestion{
		{"a", "do ACLs of one direction make the other deny", false, (*pair).otherDirection},
		{"b", "which of two rules of one priority decides", false, (*pair).tie},
		{"f", "may a connection be opened right after a list was written anew", false, (*pair).afterRewrite},
		{"l", "must all sets of one member match", true, (*pair).twoSets},
		{"n", "does a set without members match", true, (*pair).emptySet},
		{"o", "is Local the source in an In rule with a set", true, (*pair).setSide},
		{"x", "do ACLs let neighbour discovery pass", false, (*pair).neighbours}, // before the pods know each other by IPv6
		{"s", "does a rule without addresses match IPv6", false, (*pair).withoutAddresses},
		{"p", "does the pod's firewall let pass without Host rules", false, (*pair).noHostRules},
		{"aa", "does VFP write an event that names a packet which an ACL has dropped", false, (*pair).drops},
		{"ab", "what does the QOS policy of an endpoint limit", false, (*pair).qosDirection},
		{"ac", "what is the MTU of a pod's interface", false, (*pair).mtu},
	}
}

// probePackets runs all checks that need packets between two pods, and then more, if it is not nil.
func (b *bench) probePackets(ctx context.Context, namespaces []string, w wire, more func(*pair) error) (answers []Answer, err error) {
	none := func(why string) []Answer {
		var all []Answer
		for _, q := range packetQuestions() {
			all = append(all, Answer{ID: q.id, Question: q.text, Detail: why})
		}
		return all
	}
	switch {
	case len(namespaces) == 0:
		return none("needs packets: give --pods"), nil
	case w == nil:
		return none("needs packets: this system cannot send from a compartment"), nil
	}
	p := &pair{bench: b, wire: w, again: time.Second}
	for i, end := range []*pod{&p.a, &p.b} {
		if *end, err = b.findPod(ctx, namespaces[i]); err != nil {
			return nil, err
		}
	}
	defer func() { err = errors.Join(err, p.restore(ctx)) }()
	if why, err := p.baseline(ctx); err != nil || why != "" {
		return none(why), err
	}
	for _, q := range packetQuestions() {
		a := Answer{Detail: "this HNS has no sets (13.0 has)"}
		if !q.sets || b.version.Supports(hns.Sets) {
			if a, err = q.ask(p, ctx); err == nil {
				err = errors.Join(p.open(ctx), b.removeSets(ctx))
			}
		}
		if err != nil {
			return answers, fmt.Errorf("question %s: %w", q.id, err)
		}
		a.ID, a.Question = q.id, q.text
		answers = append(answers, a)
	}
	if more != nil {
		err = more(p)
	}
	return answers, err
}

// findPod finds the endpoint of a namespace on the network.
func (b *bench) findPod(ctx context.Context, namespace string) (pod, error) {
	ns, err := b.hns.Namespace(ctx, namespace)
	if err != nil {
		return pod{}, fmt.Errorf("--pods: look up namespace %s: %w", namespace, err)
	}
	list, err := b.hns.Endpoints(ctx, b.network.ID)
	if err != nil {
		return pod{}, fmt.Errorf("list endpoints: %w", err)
	}
	for _, e := range list {
		if !hns.SameID(e.HostComputeNamespace, namespace) {
			continue
		}
		for _, c := range e.IPConfigurations {
			if ip, err := netip.ParseAddr(c.IPAddress); err == nil && ip.Is4() {
				return pod{Endpoint: e, compartment: ns.NamespaceID, ip: ip}, nil
			}
		}
	}
	return pod{}, fmt.Errorf("--pods: namespace %s has no endpoint with an IPv4 address on network %s", namespace, b.network.Name)
}

// pair holds two pods whose policies are changed and restored.
type pair struct {
	*bench
	wire wire
	a, b pod
	// again is the pause before the second packet of a flow with a wrong verdict.
	again time.Duration
	// holds are the lists that sendCorpus has written to the pods; empty if it does not know.
	holds [2]string
}

// probePort is where B listens.
const probePort = 47180

// tcpProbe is a connection to it.
var tcpProbe = packet{model.TCP, probePort}

func (p *pair) reach(ctx context.Context) (bool, error) {
	return p.wire.Send(ctx, p.a, p.b, tcpProbe, connectTime)
}

// write replaces the ACLs of a pod and keeps its other policies.
func (p *pair) write(ctx context.Context, to pod, list ...hns.ACL) error {
	var policies []hns.Policy
	for _, o := range to.Policies {
		if !o.Is(hns.TypeACL) {
			policies = append(policies, o)
		}
	}
	if _, err := p.hns.ModifyEndpoint(ctx, to.ID, hns.Update, append(policies, wrap(list)...)...); err != nil {
		return fmt.Errorf("write acls of pod %s: %w", to.ip, err)
	}
	return nil
}

// allowAll is a list that allows everything explicitly.
func allowAll() []hns.ACL {
	list := acl.DenyAll()
	for i := range list {
		list[i].Action = hns.Allow
	}
	return list
}

// open allows all packets between the pods.
func (p *pair) open(ctx context.Context) error {
	return errors.Join(p.write(ctx, p.a, allowAll()...), p.write(ctx, p.b, allowAll()...))
}

// restore restores the policies of the pods.
func (p *pair) restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	for _, end := range []pod{p.a, p.b} {
		if end.ID != "" {
			_, err := p.hns.ModifyEndpoint(ctx, end.ID, hns.Update, end.Policies...)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// baseline returns the reason why packets cannot answer questions: A must reach B if everything is allowed, and
// must not if B denies.
func (p *pair) baseline(ctx context.Context) (why string, err error) {
	if err := p.open(ctx); err != nil {
		return "", err
	}
	ok, err := p.reach(ctx)
	if err != nil {
		return "no packets could be sent: " + err.Error(), nil
	}
	if !ok {
		return "the first pod does not reach the second although both allow everything", nil
	}
	if ok, err = p.with(ctx, acl.DenyAll()...); err != nil {
		return "", err
	}
	if ok {
		return "the first pod reaches the second although that denies everything: ACLs are not enforced on this network", nil
	}
	return "", p.open(ctx)
}

// with writes a list for B, and reports whether A reaches B.
func (p *pair) with(ctx context.Context, list ...hns.ACL) (bool, error) {
	if err := p.write(ctx, p.b, list...); err != nil {
		return false, err
	}
	return p.reach(ctx)
}

// hosts are the Host rules that allow everything.
func hosts() []hns.ACL { return allowAll()[2:] }

// answer returns the result as text.
func answer(yes bool, ifYes, ifNo string) string {
	if yes {
		return ifYes
	}
	return ifNo
}

func (p *pair) otherDirection(ctx context.Context) (Answer, error) {
	ok, err := p.with(ctx, append(hosts(), rule(hns.Out, hns.Allow, 1000))...)
	return Answer{Answer: answer(ok, "no", "yes"), Detail: "B had one Switch rule, Out Allow; a connection to it was " + answer(ok, "let in", "refused")}, err
}

func (p *pair) tie(ctx context.Context) (Answer, error) {
	var reached [2]bool
	for i, actions := range [][2]hns.Action{{hns.Allow, hns.Block}, {hns.Block, hns.Allow}} {
		list := append(hosts(), rule(hns.In, actions[0], 1000), rule(hns.In, actions[1], 1000), rule(hns.Out, hns.Allow, 1001))
		if err := p.write(ctx, p.b, list...); err != nil {
			text, err := taken(err)
			return Answer{Answer: text, Detail: "Allow and Block of one priority"}, err
		}
		var err error
		if reached[i], err = p.reach(ctx); err != nil {
			return Answer{}, err
		}
	}
	names := map[[2]bool]string{{true, false}: "the first", {false, true}: "the last", {true, true}: "Allow", {false, false}: "Block"}
	return Answer{Answer: names[reached], Detail: "Allow and Block at 1000, then the other way round; one try each"}, nil
}

func (p *pair) afterRewrite(ctx context.Context) (Answer, error) {
	const tries = 10
	worked := 0
	for range tries {
		ok, err := p.with(ctx, allowAll()...)
		if err != nil {
			return Answer{}, err
		}
		if ok {
			worked++
		}
	}
	return Answer{Answer: answer(worked == tries, "yes", "not always"), Wrong: worked < tries,
		Detail: fmt.Sprintf("%d of %d; whether open connections survive is for a stream by hand", worked, tries)}, nil
}

// fromSets allows sets to reach B, with the ACLs that Isthmus writes.
func (p *pair) fromSets(ctx context.Context, ids ...string) (bool, error) {
	r := rule(hns.In, hns.Allow, 500)
	r.LocalAddresses = strings.Join(ids, ",")
	list := append(hosts(), r, rule(hns.In, hns.Block, 1000), rule(hns.Out, hns.Allow, 1001))
	return p.with(ctx, list...)
}

// setsOf makes sets with the given members.
func (p *pair) setsOf(ctx context.Context, members ...netip.Addr) ([]string, error) {
	var ids []string
	for i, m := range members {
		id := fmt.Sprintf("isthmus-conformance%d-v4", i)
		if _, err := p.set(ctx, acl.EncodeSet(id, []netip.Addr{m})); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (p *pair) twoSets(ctx context.Context) (Answer, error) {
	ids, err := p.setsOf(ctx, p.a.ip, netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		return Answer{}, err
	}
	ok, err := p.fromSets(ctx, ids...)
	return Answer{Answer: answer(ok, "no", "yes"), Detail: "A was in one of two sets"}, err
}

func (p *pair) emptySet(ctx context.Context) (Answer, error) {
	const id = "isthmus-conformance0-v4"
	if _, err := p.set(ctx, hns.SetPolicy{ID: id, Name: id, PolicyType: hns.IPSet}); err != nil {
		text, err := taken(err)
		return Answer{Answer: text, Detail: "the set itself"}, err
	}
	ok, err := p.fromSets(ctx, id)
	return Answer{Answer: answer(ok, "everything", "nothing"), Detail: "Isthmus puts 127.0.0.1 into such sets"}, err
}

func (p *pair) setSide(ctx context.Context) (Answer, error) {
	ids, err := p.setsOf(ctx, p.a.ip)
	if err != nil {
		return Answer{}, err
	}
	ok, err := p.fromSets(ctx, ids...)
	return Answer{Answer: answer(ok, "yes", "no"), Wrong: !ok, Detail: "A in LocalAddresses of an In rule was " + answer(ok, "let in", "refused")}, err
}

func (p *pair) noHostRules(ctx context.Context) (Answer, error) {
	ok, err := p.with(ctx, rule(hns.In, hns.Allow, 1000), rule(hns.Out, hns.Allow, 1001))
	return Answer{Answer: answer(ok, "yes", "no"), Detail: "B had Switch rules only, which allow everything"}, err
}
