// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
)

// Target returns this service as the target of faults.
func (s *Service) Target() fault.Target {
	return fault.Target{HNS: s.config.HNS, Faults: &s.faults, Version: s.config.Version}
}

// strike applies a Way of the catalogue by its name.
func (s *Service) strike(q url.Values) (string, error) {
	way, ok := fault.FindWay(q.Get("way"))
	if !ok {
		return "", fmt.Errorf("way %q: there is none of that name", q.Get("way"))
	}
	t := s.Target()
	t.Endpoint, t.Namespace = q.Get("endpoint"), q.Get("namespace")
	if text := q.Get("address"); text != "" {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return "", err
		}
		t.Address = a
	}
	if err := t.Strike(way); err != nil {
		return "", err
	}
	return "", s.changed()
}

// Latency returns faults that delay calls in realistic proportions; scale 1 is the full time. The
// figures are estimates.
func Latency(scale float64) []fault.Fault {
	var all []fault.Fault
	for op, full := range map[string]time.Duration{
		"Create.network": 10 * time.Second, "Create.endpoint": 300 * time.Millisecond, "Modify.namespace": 200 * time.Millisecond,
		"Modify.endpoint": 100 * time.Millisecond, "Modify.network": 50 * time.Millisecond, "Enumerate.endpoint": 5 * time.Millisecond,
		"Open.endpoint": 2 * time.Millisecond,
	} {
		all = append(all, fault.Fault{Op: op, Delay: time.Duration(float64(full) * scale)})
	}
	return all
}
