// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// The limit of the QOS policy, in bytes a second, and how long each direction is measured.
const (
	qosLimit = 1_000_000
	qosTime  = 2 * time.Second
)

// qosDirection limits A and measures both directions. A direction is limited if it stays below three times the limit;
// HNS counts headers, and chooses bursts.
func (p *pair) qosDirection(ctx context.Context) (answer Answer, err error) {
	free, err := p.rates(ctx)
	if err != nil {
		return Answer{Detail: "no stream: " + err.Error()}, ctx.Err()
	}
	for _, rate := range free {
		if rate < 10*qosLimit {
			return Answer{Detail: fmt.Sprintf("without a limit A sends %.0f and receives %.0f bytes/s: too slow to see one", free[0], free[1])}, nil
		}
	}
	limit := hns.MakePolicy(hns.TypeQOS, hns.QOS{MaximumOutgoingBandwidthInBytes: qosLimit})
	if _, err := p.hns.ModifyEndpoint(ctx, p.a.ID, hns.Add, limit); err != nil {
		text, err := taken(err)
		return Answer{Answer: text, Wrong: err == nil, Detail: "a QOS policy"}, err
	}
	// An Update may keep what it does not name.
	defer func() {
		later, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, removal := p.hns.ModifyEndpoint(later, p.a.ID, hns.Remove, limit)
		err = errors.Join(err, removal)
	}()
	limited, err := p.rates(ctx)
	if err != nil {
		return Answer{Detail: "no stream with a limit: " + err.Error()}, ctx.Err()
	}
	names := map[[2]bool]string{{true, false}: "what it sends", {false, true}: "what it receives", {true, true}: "both", {}: "nothing"}
	found := names[[2]bool{limited[0] < 3*qosLimit, limited[1] < 3*qosLimit}]
	return Answer{Answer: found, Wrong: found != "what it sends", Detail: fmt.Sprintf("with a limit of %d bytes/s A sends %.0f and receives %.0f, without it %.0f and %.0f",
		qosLimit, limited[0], limited[1], free[0], free[1])}, nil
}

// rates measures what A sends to B and receives from it, in bytes a second.
func (p *pair) rates(ctx context.Context) (rates [2]float64, err error) {
	for i, ends := range [][2]pod{{p.a, p.b}, {p.b, p.a}} {
		if rates[i], err = p.wire.Stream(ctx, ends[0], ends[1], probePort, qosTime); err != nil {
			return rates, err
		}
	}
	return rates, nil
}
