// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Names of the setups that others are compared with.
const (
	rawSetup    = "raw veth pair"
	routedSetup = "routed, no policy"
	bareSetup   = "bare redirect_peer"
	leastSetup  = "redirect_peer after one lookup"
)

// build makes all setups.
func (w *setups) build() error {
	if err := w.direct(); err != nil {
		return fmt.Errorf("%s: %w", rawSetup, err)
	}
	if _, err := w.routed(routedSetup); err != nil {
		return fmt.Errorf("%s: %w", routedSetup, err)
	}
	if err := w.bare(bareSetup, "bare_peer"); err != nil {
		return fmt.Errorf("%s: %w", bareSetup, err)
	}
	if err := w.bare(leastSetup, "least_peer"); err != nil {
		return fmt.Errorf("%s: %w", leastSetup, err)
	}
	for _, n := range []int{1, 10_000} {
		of := world{policies: n, pods: 1000, direction: model.Ingress}
		policies := fmt.Sprintf("%d policies", n)
		if n == 1 {
			policies = "1 policy"
		}
		err := errors.Join(w.isthmus("Isthmus, "+policies, of),
			w.nftables("nftables set, "+policies, of, true),
			w.nftables("nftables list, "+policies, of, false))
		if err != nil {
			return fmt.Errorf("%s: %w", policies, err)
		}
	}
	return nil
}

// paths measures all setups in each round.
func (o options) paths(ctx context.Context) (rows []row, err error) {
	w, err := newSetups()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.build(); err != nil {
		return nil, err
	}
	for _, part := range []func(context.Context, *setups) ([]row, error){o.forwarding, o.requests, o.bulk} {
		more, err := part(ctx, w)
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// each calls measure on all setups in each round.
func (w *setups) each(ctx context.Context, rounds int, measure func(*setup) (figure, error)) (map[string]figure, error) {
	all := make(map[string]figure)
	for range rounds {
		for _, of := range w.list {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			f, err := of.awake(measure)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", of.name, err)
			}
			all[of.name] = append(all[of.name], f...)
		}
	}
	return all, nil
}

// isOurs reports whether a setup has goals.
func isOurs(name string) bool { return strings.HasPrefix(name, "Isthmus") }

// isIPv4 reports whether a setup forwards IPv4 only.
func isIPv4(name string) bool { return name == leastSetup || strings.HasPrefix(name, "nftables") }

// loads are the packets that forwarding measures.
var loads = []load{{"1 flow", false, 1}, {"1000 flows", false, 1000}, {"IPv6, 1 flow", true, 1}}

// inject measures the packets of a load in established flows, in all setups that have a node and its IP version. Flows that
// expired while others were measured are established again.
func (o options) inject(ctx context.Context, w *setups, in *injector, l load) (map[string]figure, error) {
	return w.each(ctx, o.rounds, func(of *setup) (figure, error) {
		if of.node == nil || l.v6 && isIPv4(of.name) {
			return nil, nil
		}
		if err := in.establish(of, l); err != nil {
			return nil, err
		}
		ns, err := in.run(of, l, false, 1<<17)
		return figure{ns}, err
	})
}

// forwarding measures the cost of a packet from the client's interface on the node to the server's
// interface in the pod.
func (o options) forwarding(ctx context.Context, w *setups) ([]row, error) {
	in, err := newInjector(w)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, l := range loads {
		all, err := o.inject(ctx, w, in, l)
		if err != nil {
			return rows, errors.Join(err, in.end())
		}
		part := "paths: forwarding, " + l.name
		for _, of := range w.list {
			if len(all[of.name]) == 0 {
				continue
			}
			r := newRow(part, of.name, "ns/packet", all[of.name])
			if isOurs(of.name) {
				rows = append(rows, r.beside(bareSetup, all[bareSetup], goal{times: 1.10}))
				rows = append(rows, r.beside(routedSetup, all[routedSetup], goal{times: 0.60}))
				continue
			}
			rows = append(rows, r.beside(routedSetup, all[routedSetup], goal{}))
		}
	}
	return rows, in.end()
}
