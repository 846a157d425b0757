// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// linkLocal returns the pods with their link-local addresses. why is the reason if one has none.
func (p *pair) linkLocal() (a, b pod, why string, err error) {
	a, b = p.a, p.b
	for _, end := range []*pod{&a, &b} {
		has, err := p.wire.Adapter(*end)
		if err != nil {
			return a, b, "", err
		}
		if !has.linkLocal.IsValid() {
			return a, b, fmt.Sprintf("pod %s has no link-local address: IPv6 may be turned off", end.ip), nil
		}
		end.ip = has.linkLocal
	}
	return a, b, "", nil
}

// with6 writes lists for both pods, and reports whether A reaches B by link-local addresses.
func (p *pair) with6(ctx context.Context, a, b pod, of, to []hns.ACL) (bool, error) {
	if err := p.write(ctx, p.a, of...); err != nil {
		return false, err
	}
	if err := p.write(ctx, p.b, to...); err != nil {
		return false, err
	}
	return p.wire.Send(ctx, a, b, tcpProbe, connectTime)
}

// unreached is the detail of an answer that IPv6 packets cannot give.
const unreached = "A does not reach the link-local address of B, although both allow everything"

func (p *pair) withoutAddresses(ctx context.Context) (Answer, error) {
	a, b, why, err := p.linkLocal()
	if err != nil || why != "" {
		return Answer{Detail: why}, err
	}
	if ok, err := p.with6(ctx, a, b, allowAll(), allowAll()); err != nil || !ok {
		return Answer{Detail: unreached}, err
	}
	ok, err := p.with6(ctx, a, b, allowAll(), acl.DenyAll())
	return Answer{Answer: answer(ok, "no", "yes"), Wrong: ok, Detail: "A's connection to the link-local address of B was " +
		answer(ok, "let in", "refused") + ", while a rule without addresses blocked everything"}, err
}

// only is a list that denies everything but one peer in one direction.
func only(d hns.Direction, peer pod) []hns.ACL {
	r := rule(d, hns.Allow, 500)
	r.RemoteAddresses = peer.ip.WithZone("").String()
	return append(hosts(), r, rule(hns.In, hns.Block, 1000), rule(hns.Out, hns.Block, 1001))
}

func (p *pair) neighbours(ctx context.Context) (Answer, error) {
	if !p.version.Supports(hns.DualStack) {
		return Answer{Detail: "this HNS has no ACLs with IPv6 addresses (11.10 has)"}, nil
	}
	a, b, why, err := p.linkLocal()
	if err != nil || why != "" {
		return Answer{Detail: why}, err
	}
	ok, err := p.with6(ctx, a, b, only(hns.Out, b), only(hns.In, a))
	if err != nil {
		text, err := taken(err)
		return Answer{Answer: text, Wrong: err == nil, Detail: "rules with a link-local address"}, err
	}
	if !ok {
		if open, err := p.with6(ctx, a, b, allowAll(), allowAll()); err != nil || !open {
			return Answer{Detail: unreached}, err
		}
	}
	return Answer{Answer: answer(ok, "yes", "no"), Wrong: !ok, Detail: "both denied everything but each other's link-local address; a connection was " +
		answer(ok, "opened", "not opened")}, nil
}
