// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// ChangeReading says what a change of an endpoint's ACLs does to its flows.
type ChangeReading uint8

// Reports exist for the last; the first two are what one could expect.
const (
	// FlowsStay: flows that were let pass go on.
	FlowsStay ChangeReading = iota
	// FlowsDecidedAgain: the next packet of each asks the new rules about the
	// flow's first packet.
	FlowsDecidedAgain
	// FlowsForgotten: every packet is the first of a flow again, so that replies
	// need a rule and live connections may break.
	FlowsForgotten
)

// Options are the choices where VFP is not documented.
type Options struct {
	// Rules is how ACLs are read.
	Rules hns.Reading
	// Change is what happens to flows.
	Change ChangeReading
	// DropICMPErrors makes ICMP errors about flows that pass need a rule.
	DropICMPErrors bool
	// ACLSeesVIP puts the ACLs before the load balancers of DSR: they see the
	// service's address instead of the pod's.
	ACLSeesVIP bool
	// NATAnswers makes OutBoundNAT translate answers to flows that came in, too.
	NATAnswers bool
	// Now is the clock; nil for the system's.
	Now func() time.Time
}

// String names the options in one word.
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
