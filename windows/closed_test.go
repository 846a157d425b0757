// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestCreatedWithoutACLs checks that an endpoint which HNS created without its ACLs is never attached: the call
// fails, and nothing is left.
func TestCreatedWithoutACLs(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		n.config = poolConfig(t, n.config)
		n.start()
		spec := n.spec("c1", "10.0.1.7")
		n.add(n.spec("c2", "10.0.1.8")) // the network exists
		before := n.fake.Dump()
		n.fake.ForgetCalls()
		n.fake.SetQuirks(hnstest.Quirks{OpenEndpoints: true})
		for name, call := range map[string]func() error{
			"AddEndpoint":   func() error { _, err := n.backend.AddEndpoint(ctx, spec); return err },
			"StartEndpoint": func() error { return n.begin(spec).end() },
			"Prepare":       func() error { return n.prepare(spare("10.0.1.9")) },
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), "did not store default deny") {
				t.Errorf("%s: %v", name, err)
			}
			if n.count("AttachEndpoint") > 0 {
				t.Errorf("%s attached an open endpoint", name)
			}
			if got := n.fake.Dump(); got != before {
				t.Errorf("%s left\n%s\nwant\n%s", name, got, before)
			}
		}
		n.fake.SetQuirks(hnstest.Quirks{})
		n.add(spec)
	})
}

// TestOpenEndpointIsNotAttached checks that the endpoint of an unfinished call is not attached if HNS accepts its
// repair without an effect.
func TestOpenEndpointIsNotAttached(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	detach(t, n, n.stored(spec.ID))
	n.changeACLs(n.name(spec.ID), openACLs()...)
	faults := new(fault.Faults)
	backend, err := windows.New(ctx, n.config, &fault.Client{Fake: n.fake, Faults: faults}, discard)
	if err != nil {
		t.Fatal(err)
	}
	n.fake.ForgetCalls()
	faults.Set(fault.Fault{Op: "Modify.endpoint", Times: 1, Lie: true})
	if _, err := backend.AddEndpoint(ctx, spec); err == nil || !strings.Contains(err.Error(), "decide everything") || n.count("AttachEndpoint") > 0 {
		t.Errorf("the repair has no effect: %v", err)
	}
	if _, err := backend.AddEndpoint(ctx, spec); err != nil || n.stored(spec.ID).HostComputeNamespace == "" {
		t.Errorf("after it: %v", err)
	}
}

// TestCreatedWithoutIPv6: an endpoint that HNS created with other addresses is not attached, and nothing is left. The pod would be
// reported as reachable by an address that it does not have, and each audit would make the endpoint again.
func TestCreatedWithoutIPv6(t *testing.T) {
	n := newNode(t, hns.Server2022, poolConfig(t, dualConfig()))
	spec, prepared := n.spec("c1", "10.0.1.7"), spare("10.0.1.9")
	spec.IPs = append(spec.IPs, netip.MustParseAddr("fd00:1::7"))
	prepared.IPs = append(prepared.IPs, netip.MustParseAddr("fd00:1::9"))
	n.add(n.spec("c2", "10.0.1.8")) // the network exists
	before := n.fake.Dump()
	n.fake.SetQuirks(hnstest.Quirks{IPv4Only: true})
	for name, call := range map[string]func() error{
		"AddEndpoint":   func() error { _, err := n.backend.AddEndpoint(ctx, spec); return err },
		"StartEndpoint": func() error { return n.begin(spec).end() },
		"Prepare":       func() error { return n.prepare(prepared) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "the addresses [10.0.1.") {
			t.Errorf("%s: %v", name, err)
		}
		if got := n.fake.Dump(); got != before {
			t.Errorf("%s left\n%s\nwant\n%s", name, got, before)
		}
	}
	n.fake.SetQuirks(hnstest.Quirks{})
	n.add(spec)
	n.wantProblems("in the end", nil)
}
