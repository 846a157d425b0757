// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strings"
	"testing"
)

func TestBandwidth(t *testing.T) {
	for _, c := range []struct {
		b         Bandwidth
		text, bad string
	}{
		{Bandwidth{}, "no limit", ""},
		{Bandwidth{Ingress: Limit{Rate: MinRate}}, "ingress 1000 bit/s", ""},
		{Bandwidth{Egress: Limit{Rate: MaxRate, Burst: 1 << 32}}, "egress 1000000000000000 bit/s", ""},
		{Bandwidth{Ingress: Limit{Rate: 10e6}, Egress: Limit{Rate: 5e6}}, "ingress 10000000 bit/s, egress 5000000 bit/s", ""},
		{Bandwidth{Ingress: Limit{Rate: MinRate - 1}}, "ingress 999 bit/s", "ingressRate is 999 bits per second: use 1000 to"},
		{Bandwidth{Egress: Limit{Rate: MaxRate + 1}}, "egress 1000000000000001 bit/s", "egressRate is 1000000000000001"},
		{Bandwidth{Egress: Limit{Burst: 8}}, "no limit", "egressBurst is 8 bits without a rate"},
	} {
		if got := c.b.String(); got != c.text {
			t.Errorf("%+v is %q, want %q", c.b, got, c.text)
		}
		err := c.b.Validate()
		if c.bad == "" && err != nil || c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%+v: %v, want an error with %q", c.b, err, c.bad)
		}
	}
}
