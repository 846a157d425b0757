// SPDX-License-Identifier: Apache-2.0

package hnstest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

var ctx = context.Background()

// pod is the address of the endpoint of fakeWith.
var pod = netip.MustParseAddr("10.40.3.7")

func l2bridge(name string) hns.Network {
	return hns.Network{Name: name, Type: hns.L2Bridge, Flags: hns.NonPersistent, SchemaVersion: hns.Schema2,
		Policies: []hns.Policy{hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: "Ethernet"})},
		Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: "10.40.3.0/24",
			Routes: []hns.Route{{NextHop: "10.40.3.1", DestinationPrefix: "0.0.0.0/0"}}}}}}}
}

func overlay(name string, vni uint32) hns.Network {
	n := l2bridge(name)
	n.Type = hns.Overlay
	n.Ipams[0].Subnets[0].Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: vni})}
	return n
}

// fakeWith returns a service with a network and an attached endpoint on it.
func fakeWith(t *testing.T, v hns.Version) (*hnstest.Fake, hns.Network, hns.Endpoint) {
	t.Helper()
	f := hnstest.NewFake(v)
	n, err := f.CreateNetwork(ctx, l2bridge("net"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.CreateEndpoint(ctx, hns.Endpoint{Name: "ep", HostComputeNetwork: n.ID, IPConfigurations: []hns.IPConfig{{IPAddress: "10.40.3.7"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.AttachEndpoint(ctx, f.AddNamespace(), e.ID); err != nil {
		t.Fatal(err)
	}
	return f, n, e
}

func set(id, values string) hns.Policy {
	return hns.SetPolicy{ID: id, Name: id, PolicyType: hns.IPSet, Values: values}.Policy()
}

// refusal is a request that HNS refuses, with the code and its class. Code 0 marks a similar
// request that HNS accepts.
type refusal struct {
	name    string
	version hns.Version
	call    func(f *hnstest.Fake, n hns.Network, e hns.Endpoint) error
	code    uint32
	class   error
}

func networkRefusals() []refusal {
	return []refusal{
		{"same network name", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			_, err := f.CreateNetwork(ctx, l2bridge("NET"))
			return err
		}, hns.CodeNetworkExists, hns.ErrConflict},
		{"adapter that is not there", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			n := l2bridge("other")
			n.Policies = []hns.Policy{hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: "eth9"})}
			_, err := f.CreateNetwork(ctx, n)
			return err
		}, 0x803B0006, hns.ErrRefused},
		{"vni below 4096", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			_, err := f.CreateNetwork(ctx, overlay("other", 4095))
			return err
		}, hns.CodeInvalidPolicy, hns.ErrRefused},
		{"subnet without default route", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			n := l2bridge("other")
			n.Ipams[0].Subnets[0].Routes = nil
			_, err := f.CreateNetwork(ctx, n)
			return err
		}, hnstest.CodeInvalidNetwork, hns.ErrRefused},
		{"settings that are not JSON", hns.Server2022, update(hns.Policy{Type: hns.TypeACL, Settings: []byte(`{"Id"`)}), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"set on 2019", hns.Server2019, modifyNetwork(hns.Add, set("s", "10.0.0.1")), hns.CodeInvalidPolicyType, hns.ErrRefused},
		{"set with host bits", hns.Server2022, modifyNetwork(hns.Add, set("s", "10.0.0.1/8")), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"set twice", hns.Server2022, modifyNetwork(hns.Add, set("s", "10.0.0.1"), set("s", "10.0.0.2")), hns.CodePolicyExists, hns.ErrConflict},
		{"remove an unknown set", hns.Server2022, modifyNetwork(hns.Remove, set("s", "10.0.0.1")), hns.CodePolicyNotFound, hns.ErrGone},
		{"remove a set in use", hns.Server2022, func(f *hnstest.Fake, n hns.Network, e hns.Endpoint) error {
			if _, err := f.ModifyNetwork(ctx, n.ID, hns.Add, set("s", "10.0.0.1")); err != nil {
				return err
			}
			if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, remoteRule("s").Policy()); err != nil {
				return err
			}
			_, err := f.ModifyNetwork(ctx, n.ID, hns.Remove, set("s", "10.0.0.1"))
			return err
		}, hnstest.CodeHasReferences, hns.ErrRefused},
	}
}

func endpointRefusals() []refusal {
	return []refusal{
		{"address taken", hns.Server2022, func(f *hnstest.Fake, n hns.Network, _ hns.Endpoint) error {
			_, err := f.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: n.ID, IPConfigurations: []hns.IPConfig{{IPAddress: "10.40.3.7"}}})
			return err
		}, hns.CodeObjectExists, hns.ErrConflict},
		{"address taken, for a remote endpoint", hns.Server2022, func(f *hnstest.Fake, n hns.Network, _ hns.Endpoint) error {
			_, err := f.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: n.ID, Flags: hns.RemoteEndpoint, IPConfigurations: []hns.IPConfig{{IPAddress: "10.40.3.7"}}})
			return err
		}, hns.CodeObjectExists, hns.ErrConflict},
		{"gateway's address", hns.Server2022, createAt("10.40.3.1"), hnstest.CodeAddressInvalid, hns.ErrRefused},
		{"network's address", hns.Server2022, createAt("10.40.3.0"), hnstest.CodeAddressInvalid, hns.ErrRefused},
		{"broadcast address", hns.Server2022, createAt("10.40.3.255"), hnstest.CodeAddressInvalid, hns.ErrRefused},
		{"outside the subnet", hns.Server2022, createAt("10.40.4.7"), hnstest.CodeAddressInvalid, hns.ErrRefused},
		{"unknown network", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			_, err := f.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: "nowhere"})
			return err
		}, hns.CodeNetworkNotFound, hns.ErrGone},
		{"endpoint made in a namespace", hns.Server2022, func(f *hnstest.Fake, n hns.Network, _ hns.Endpoint) error {
			_, err := f.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: n.ID, HostComputeNamespace: f.AddNamespace()})
			return err
		}, hnstest.CodeInvalidEndpoint, hns.ErrRefused},
		{"modify an unknown endpoint", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			_, err := f.ModifyEndpoint(ctx, "nobody", hns.Update)
			return err
		}, hns.CodeEndpointNotFound, hns.ErrGone},
		{"unknown namespace", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, _ hns.Endpoint) error {
			_, err := f.Namespace(ctx, "nobody")
			return err
		}, hns.CodeNotFound, hns.ErrGone},
		{"attached already", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, e hns.Endpoint) error {
			return f.AttachEndpoint(ctx, f.AddNamespace(), e.ID)
		}, hns.CodeNamespaceHas, hns.ErrConflict},
		{"attached to the host already", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, e hns.Endpoint) error {
			return errors.Join(f.AttachEndpoint(ctx, hns.HostNamespace, e.ID), f.AttachEndpoint(ctx, hns.HostNamespace, e.ID))
		}, hns.CodeAlreadyAttached, hns.ErrConflict},
		{"attach a remote endpoint", hns.Server2022, func(f *hnstest.Fake, n hns.Network, _ hns.Endpoint) error {
			e, err := f.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: n.ID, Flags: hns.RemoteEndpoint, IPConfigurations: []hns.IPConfig{{IPAddress: "10.40.9.9"}}})
			return errors.Join(err, f.AttachEndpoint(ctx, f.AddNamespace(), e.ID))
		}, hnstest.CodeRemoteEndpoint, hns.ErrRefused},
		{"detach where it is not", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, e hns.Endpoint) error {
			return f.DetachEndpoint(ctx, f.AddNamespace(), e.ID)
		}, hns.CodeNotFound, hns.ErrGone},
	}
}

func policyRefusals() []refusal {
	return []refusal{
		{"unknown policy type", hns.Server2022, update(hns.Policy{Type: "Magic", Settings: []byte(`{}`)}), hns.CodeInvalidPolicyType, hns.ErrRefused},
		{"priority out of range", hns.Server2019, update(rule("x", hns.Allow, hns.In, 65501).Policy()), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"prefix with host bits on 2022", hns.Server2022, update(remoteRule("10.0.0.1/8").Policy()), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"and on 2019", hns.Server2019, update(remoteRule("10.0.0.1/8").Policy()), 0, nil},
		{"nat exception with host bits", hns.Server2022, update(hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Exceptions: []string{"172.17.0.1/16"}})), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"two nat policies", hns.Server2022, update(hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{}), hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{})), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"one of each family", hns.Server2022, update(hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{}), hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Flags: hns.NATIPv6})), 0, nil},
		{"unknown set", hns.Server2022, update(remoteRule("pods").Policy()), hns.CodeInvalidPolicy, hns.ErrRefused},
		{"remove an unknown policy", hns.Server2022, func(f *hnstest.Fake, _ hns.Network, e hns.Endpoint) error {
			_, err := f.ModifyEndpoint(ctx, e.ID, hns.Remove, remoteRule("10.0.0.1").Policy())
			return err
		}, hns.CodePolicyNotFound, hns.ErrGone},
	}
}

// TestFakeRefuses checks all known refusals.
func TestFakeRefuses(t *testing.T) {
	for _, c := range slices.Concat(networkRefusals(), endpointRefusals(), policyRefusals()) {
		t.Run(c.name, func(t *testing.T) {
			f, n, e := fakeWith(t, c.version)
			objects := func() string { // without namespaces, which the calls create themselves
				text, _, _ := strings.Cut(f.Dump(), "\nnamespace ")
				return text
			}
			before := objects()
			err := c.call(f, n, e)
			if hns.Code(err) != c.code || (c.class == nil) != (err == nil) || err != nil && !errors.Is(err, c.class) {
				t.Fatalf("error %v, want code %#x of class %v", err, c.code, c.class)
			}
			for _, other := range []error{hns.ErrGone, hns.ErrConflict, hns.ErrRetry, hns.ErrRefused} {
				if err != nil && errors.Is(err, other) != (other == c.class) {
					t.Errorf("class %v: %t", other, errors.Is(err, other))
				}
			}
			// The other requests need preparation.
			if c.code != 0 && !strings.Contains(c.name, "remove a set") && !strings.Contains(c.name, "attach") && objects() != before {
				t.Errorf("a refused call changed something:\n%s", f.Dump())
			}
		})
	}
}

func createAt(ip string) func(*hnstest.Fake, hns.Network, hns.Endpoint) error {
	return func(f *hnstest.Fake, n hns.Network, _ hns.Endpoint) error {
		_, err := f.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: n.ID, IPConfigurations: []hns.IPConfig{{IPAddress: ip}}})
		return err
	}
}

func update(policies ...hns.Policy) func(*hnstest.Fake, hns.Network, hns.Endpoint) error {
	return func(f *hnstest.Fake, _ hns.Network, e hns.Endpoint) error {
		_, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, policies...)
		return err
	}
}

func modifyNetwork(r hns.RequestType, policies ...hns.Policy) func(*hnstest.Fake, hns.Network, hns.Endpoint) error {
	return func(f *hnstest.Fake, n hns.Network, _ hns.Endpoint) error {
		_, err := f.ModifyNetwork(ctx, n.ID, r, policies...)
		return err
	}
}

func remoteRule(addresses string) hns.ACL {
	a := rule("x", hns.Allow, hns.In, 1000)
	a.RemoteAddresses = addresses
	return a
}

// TestFakeLifecycle checks the effects of objects on each other.
func TestFakeLifecycle(t *testing.T) {
	f, n, e := fakeWith(t, hns.Server2022)
	if e.MACAddress == "" || e.IPConfigurations[0].PrefixLength != 24 {
		t.Errorf("the answer is not complete: %+v", e)
	}
	named, err := f.CreateEndpoint(ctx, hns.Endpoint{Name: "ep", HostComputeNetwork: n.ID})
	if err != nil || named.IPConfigurations[0].IPAddress != "10.40.3.2" {
		t.Errorf("an endpoint with only a name, that another has: %+v, %v", named, err)
	}
	if _, err := f.ModifyNetwork(ctx, n.ID, hns.Update, set("ghost", "10.0.0.1")); err != nil || strings.Contains(f.Dump(), "ghost") {
		t.Errorf("an update of an unknown set must have no effect and no error: %v", err)
	}
	if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{}), remoteRule("10.0.0.1").Policy()); err != nil {
		t.Fatal(err)
	}
	changed, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, remoteRule("10.0.0.2").Policy())
	if acls, _ := changed.ACLs(); err != nil || len(acls) != 1 || acls[0].RemoteAddresses != "10.0.0.2" || len(changed.Policies) != 3 {
		t.Errorf("update by type: %+v, %v", changed.Policies, err)
	}
	f.UpdateReplacesAll = true
	changed, err = f.ModifyEndpoint(ctx, e.ID, hns.Update, remoteRule("10.0.0.3").Policy())
	if err != nil || len(changed.Policies) != 1 {
		t.Errorf("update of everything: %+v, %v", changed.Policies, err)
	}
	for remote, want := range map[string]bool{"10.0.0.3": true, "10.0.0.2": false} {
		got, err := f.Send("ep", packet(hns.In, remote, 6, 80), hns.Reading{})
		if err != nil || got.Allow != want {
			t.Errorf("packet from %s: %+v, %v", remote, got, err)
		}
	}
	if s, err := f.EndpointStats(ctx, e.ID); err != nil || s != (hns.Stats{PacketsReceived: 1, DroppedIn: 1}) {
		t.Errorf("stats %+v, %v", s, err)
	}
	list, _ := f.Endpoints(ctx, n.ID)
	f.RemoveNamespace(list[0].HostComputeNamespace)
	if _, err := f.Send("ep", packet(hns.In, "10.0.0.3", 6, 80), hns.Reading{}); err == nil {
		t.Error("a packet reached an endpoint whose namespace is gone")
	}
	if err := f.DeleteNetwork(ctx, n.ID); err != nil || f.Dump() != "" {
		t.Errorf("removing the network must remove all on it: %v\n%s", err, f.Dump())
	}
}

// TestFakeTakesNoRuleType checks ACLs as Azure's plugin has them: without a RuleType they are Switch rules.
func TestFakeTakesNoRuleType(t *testing.T) {
	f, _, e := fakeWith(t, hns.Server2022)
	blocked, rest := remoteRule("10.0.0.1"), rule("rest", hns.Allow, hns.In, 65500)
	blocked.Action, blocked.RuleType, rest.RuleType = hns.Block, "", ""
	changed, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, rest.Policy(), blocked.Policy())
	if acls, _ := changed.ACLs(); err != nil || len(acls) != 2 || acls[0].RuleType+acls[1].RuleType != "" {
		t.Fatalf("%+v, %v: want the ACLs as they were written", changed.Policies, err)
	}
	for remote, want := range map[string]bool{"10.0.0.1": false, "10.0.0.2": true} {
		if got, err := f.Send("ep", packet(hns.In, remote, 6, 80), hns.Reading{}); err != nil || got.Allow != want {
			t.Errorf("packet from %s: %+v, %v", remote, got, err)
		}
	}
	rest.Priority = 0
	if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, rest.Policy()); err == nil {
		t.Error("a Switch rule without a priority was taken")
	}
}

// TestFakeOverlayGetsAddressesLate checks that the addresses of the tunnel appear some time after the
// network.
func TestFakeOverlayGetsAddressesLate(t *testing.T) {
	f := hnstest.NewFake(hns.Server2025)
	f.Late = 2
	if _, err := f.CreateNetwork(ctx, overlay("net", 4096)); err != nil {
		t.Fatal(err)
	}
	var seen []bool
	for range 4 {
		list, _ := f.Networks(ctx)
		seen = append(seen, strings.Contains(fmt.Sprint(list[0].Policies), hns.TypeDrMacAddress))
	}
	if fmt.Sprint(seen) != "[false false true true]" {
		t.Error(seen)
	}
}

// TestFakeIsSafe is for the race detector.
func TestFakeIsSafe(t *testing.T) {
	f, n, e := fakeWith(t, hns.Server2022)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 30 {
				name := fmt.Sprintf("s%d-%d", i, j)
				if _, err := f.ModifyNetwork(ctx, n.ID, hns.Add, set(name, "10.0.0.1")); err != nil {
					t.Error(err)
				}
				if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, remoteRule("10.0.0.1").Policy()); err != nil {
					t.Error(err)
				}
				if _, err := f.Endpoints(ctx, n.ID); err != nil {
					t.Error(err)
				}
				_ = f.Dump()
				_, _ = f.Send("ep", packet(hns.In, "10.0.0.1", 6, 80), hns.Reading{})
			}
		})
	}
	group.Wait()
}

func packet(d hns.Direction, remote string, protocol uint8, port uint16) hns.Packet {
	return hns.Packet{Direction: d, Local: pod, Remote: netip.MustParseAddr(remote), Protocol: protocol, Port: port}
}

func rule(id string, a hns.Action, d hns.Direction, priority uint16) hns.ACL {
	return hns.ACL{ID: id, Action: a, Direction: d, RuleType: hns.Switch, Priority: priority}
}
