// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// overlayMTU is what Isthmus takes for the MTU of pods on overlay networks, in bytes.
const overlayMTU = 1450

// mtu reads the MTU of both pods, and sends a stream, which has packets of that size.
func (p *pair) mtu(ctx context.Context) (Answer, error) {
	var sizes [2]int
	for i, end := range []pod{p.a, p.b} {
		has, err := p.wire.Adapter(end)
		if err != nil {
			return Answer{}, err
		}
		if has.mtu == 0 {
			return Answer{Detail: fmt.Sprintf("no interface of pod %s has its address", end.ip)}, nil
		}
		sizes[i] = has.mtu
	}
	rate, err := p.wire.Stream(ctx, p.a, p.b, probePort, qosTime)
	if err != nil {
		return Answer{Detail: "no stream: " + err.Error()}, ctx.Err()
	}
	a := Answer{Answer: fmt.Sprint(sizes[0]), Detail: fmt.Sprintf("A has %d bytes, B %d; a stream carried %.0f bytes/s", sizes[0], sizes[1], rate)}
	a.Wrong = sizes[0] != sizes[1] || rate < float64(sizes[0]) || p.network.Type == hns.Overlay && sizes[0] != overlayMTU
	return a, nil
}
