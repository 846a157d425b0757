// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// ChangeReading selects the effect of changed ACLs on the flows of an endpoint.
type ChangeReading uint8

// Users have reported the last reading; the first two are the behaviour that one would expect.
const (
	// FlowsStay: allowed flows continue.
	FlowsStay ChangeReading = iota
	// FlowsDecidedAgain: at the next packet of each flow the new rules decide its first packet again.
	FlowsDecidedAgain
	// FlowsForgotten: every packet is the first of a flow again, so that replies
	// need a rule and live connections may break.
	FlowsForgotten
)

// Options select the behaviour of VFP where it is not documented.
type Options struct {
	// Rules is the reading of ACLs.
	Rules hns.Reading
	// Change is the effect of changed ACLs on flows.
	Change ChangeReading
	// DropICMPErrors requires a rule for ICMP errors about allowed flows.
	DropICMPErrors bool
	// ACLSeesVIP evaluates ACLs before the load balancers of DSR: they see the address of the Service instead of
	// that of the pod.
	ACLSeesVIP bool
	// NATAnswers makes OutBoundNAT also translate answers to inbound flows.
	NATAnswers bool
	// CountFlows makes MatchedPackets of a rule count the first packet of a flow only.
	CountFlows bool
	// Now is the clock; nil for the system's.
	Now func() time.Time
}

// String returns the options as one word.
func (o Options) String() string {
	return fmt.Sprintf("%s,change=%s,icmp-errors=%t", o.Rules, [...]string{"stay", "again", "forgotten"}[o.Change], !o.DropICMPErrors)
}

// AllOptions lists every combination.
func AllOptions() []Options {
	var all []Options
	for _, r := range hns.Readings() {
		for _, c := range []ChangeReading{FlowsStay, FlowsDecidedAgain, FlowsForgotten} {
			for _, drop := range []bool{false, true} {
				all = append(all, Options{Rules: r, Change: c, DropICMPErrors: drop})
			}
		}
	}
	return all
}
