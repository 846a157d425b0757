// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// flowOptions are the flags about flow events.
type flowOptions struct {
	events      string
	rate, burst int
	logDenied   bool
}

// The values of --flow-events.
const (
	flowsAll    = "all"
	flowsDenied = "denied"
	flowsOff    = "off"
)

func (o *flowOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.events, "flow-events", flowsAll, "flow events that the data path reports: all (new flows and drops; on Windows denied flows only), denied (denied new flows and drops), or off")
	f.IntVar(&o.rate, "flow-event-rate", 20, "maximum flow events per second and pod, for each direction, and for allowed and denied separately; events over the limit are only counted")
	f.IntVar(&o.burst, "flow-event-burst", 100, "maximum burst of flow events per pod, for each direction, and for allowed and denied separately")
	f.BoolVar(&o.logDenied, "log-denied-flows", false, "log every event of a denied flow or dropped packet")
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
		errs = append(errs, errors.New("--log-denied-flows has no effect with --flow-events=off: remove one of them"))
	}
	return errors.Join(append(errs, checkFlowEvents(o))...)
}
