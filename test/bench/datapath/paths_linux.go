// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Names of ways that others are compared with.
const (
	rawWay    = "raw veth pair"
	routedWay = "routed, no policy"
	bareWay   = "bare redirect_peer"
	leastWay  = "redirect_peer after one lookup"
)

// build makes all ways.
func (w *ways) build() error {
	if err := w.direct(); err != nil {
		return fmt.Errorf("%s: %w", rawWay, err)
	}
	if _, err := w.routed(routedWay); err != nil {
		return fmt.Errorf("%s: %w", routedWay, err)
	}
	if err := w.bare(bareWay, "bare_peer"); err != nil {
		return fmt.Errorf("%s: %w", bareWay, err)
	}
	if err := w.bare(leastWay, "least_peer"); err != nil {
		return fmt.Errorf("%s: %w", leastWay, err)
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

// paths measures all ways in turn in every round.
func (o options) paths(ctx context.Context) (rows []row, err error) {
	w, err := newWays()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.build(); err != nil {
		return nil, err
	}
	for _, part := range []func(context.Context, *ways) ([]row, error){o.forwarding, o.requests, o.bulk} {
		more, err := part(ctx, w)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// each measures a quantity on all ways, round after round. A way without a node
// is left out where there is nothing to inject into.
func (w *ways) each(ctx context.Context, rounds int, measure func(*way) (figure, error)) (map[string]figure, error) {
	all := make(map[string]figure)
	for range rounds {
		for _, of := range w.list {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			f, err := measure(of)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", of.name, err)
			}
			all[of.name] = append(all[of.name], f...)
		}
	}
	return all, nil
}

// isOurs reports whether a way has goals.
func isOurs(name string) bool { return strings.HasPrefix(name, "Isthmus") }

// isIPv4 reports whether a way does what it does for IPv4 only.
func isIPv4(name string) bool { return name == leastWay || strings.HasPrefix(name, "nftables") }

// forwarding is the cost of a packet from the client's interface on the node to
// the server's in the pod.
func (o options) forwarding(ctx context.Context, w *ways) ([]row, error) {
	in, err := newInjector(w)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, l := range []load{{"1 flow", false, 1}, {"1000 flows", false, 1000}, {"IPv6, 1 flow", true, 1}} {
		takes := func(of *way) bool { return of.node != nil && !(l.v6 && isIPv4(of.name)) }
		_, err := w.each(ctx, 1, func(of *way) (figure, error) {
			if !takes(of) {
				return nil, nil
			}
			return nil, in.establish(of, l)
		})
		if err != nil {
			return nil, errors.Join(err, in.end())
		}
		all, err := w.each(ctx, o.rounds, func(of *way) (figure, error) {
			if !takes(of) {
				return nil, nil
			}
			ns, err := in.run(of, l, false, 1<<17)
			return figure{ns}, err
		})
		if err != nil {
			return nil, errors.Join(err, in.end())
		}
		part := "paths: forwarding, " + l.name
		for _, of := range w.list {
			if len(all[of.name]) == 0 {
				continue
			}
			r := newRow(part, of.name, "ns/packet", all[of.name])
			if isOurs(of.name) {
				rows = append(rows, r.beside(bareWay, all[bareWay], goal{times: 1.10}))
				rows = append(rows, r.beside(routedWay, all[routedWay], goal{times: 0.60}))
				continue
			}
			rows = append(rows, r.beside(routedWay, all[routedWay], goal{}))
		}
	}
	return rows, in.end()
}
