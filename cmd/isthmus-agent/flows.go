// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// flowOptions are the flags about events of single flows.
type flowOptions struct {
	events      string
	rate, burst int
	logDenied   bool
}

// What --flow-events takes.
const (
	flowsAll    = "all"
	flowsDenied = "denied"
	flowsOff    = "off"
)

func (o *flowOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.events, "flow-events", flowsAll, "Linux: what the data path tells of single packets: all (new flows and drops), denied (new flows that are denied, and drops), or off")
	f.IntVar(&o.rate, "flow-event-rate", 20, "Linux: events a second that a pod may cause, for each direction, allowed and not apart; the others are counted")
	f.IntVar(&o.burst, "flow-event-burst", 100, "Linux: events that a pod may cause at once after it was quiet, of each kind as before")
	f.BoolVar(&o.logDenied, "log-denied-flows", false, "Linux: write every event of a flow that is denied or dropped to the log")
}

func (o *flowOptions) check() error {
	var errs []error
	if all := []string{flowsAll, flowsDenied, flowsOff}; !slices.Contains(all, o.events) {
		errs = append(errs, fmt.Errorf("--flow-events %q: give %s", o.events, strings.Join(all, ", ")))
	}
	if o.rate < 1 {
		errs = append(errs, fmt.Errorf("--flow-event-rate %d: give 1 or more, or --flow-events=off", o.rate))
	}
	if o.burst < 1 {
		errs = append(errs, fmt.Errorf("--flow-event-burst %d: give 1 or more", o.burst))
	}
	if o.events == flowsOff && o.logDenied {
		errs = append(errs, errors.New("--log-denied-flows: there is nothing to be logged with --flow-events=off"))
	}
	return errors.Join(append(errs, checkFlowEvents(o))...)
}
