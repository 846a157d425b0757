// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

var ctx = context.Background()

const (
	client = "10.1.0.7" // policy allows it to TCP 80
	others = "10.1.0.8"
)

// node is a node with a network of another plugin.
type node struct {
	t       *testing.T
	fake    *hnstest.Fake
	file    string
	network string
	backend *foreign.Backend
	// now is the clock of the agent. It stands, so that a busy machine does not make calls of HNS take long.
	now func() time.Time
}

func newNode(t *testing.T, kind hns.NetworkType) *node {
	t.Helper()
	return newNodeOn(t, hns.Server2022, kind)
}

func newNodeOn(t *testing.T, v hns.Version, kind hns.NetworkType) *node {
	t.Helper()
	began := time.Now()
	n := &node{t: t, fake: hnstest.NewFake(v), file: filepath.Join(t.TempDir(), "foreign.json"), now: func() time.Time { return began }}
	subnet := hns.Subnet{IPAddressPrefix: "10.1.0.0/16", Routes: []hns.Route{{NextHop: "10.1.0.1", DestinationPrefix: "0.0.0.0/0"}}}
	if kind == hns.Overlay {
		subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4096})}
	}
	made, err := n.fake.CreateNetwork(ctx, hns.Network{Name: "azure", Type: kind, SchemaVersion: hns.Schema2, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}})
	if err != nil {
		t.Fatal(err)
	}
	n.network = made.ID
	for range 4 { // HNS completes an overlay network later
		if _, err := n.fake.Networks(ctx); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	return n
}

// start starts a new agent process.
func (n *node) start() {
	n.t.Helper()
	b, err := foreign.New(ctx, foreign.Config{NodeAddresses: []netip.Addr{netip.MustParseAddr("172.30.0.13")}, File: n.file, Now: n.now}, n.fake, slog.New(slog.DiscardHandler))
	if err != nil {
		n.t.Fatal(err)
	}
	n.backend = b
}

// theirs are policies as azure-vnet makes them.
func theirs() []hns.Policy {
	return []hns.Policy{
		hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/8"}}),
		acl("wireserver", hns.Out, hns.Block, 200, "168.63.129.16/32"), acl("in", hns.In, hns.Allow, 65500, ""), acl("out", hns.Out, hns.Allow, 65500, ""),
	}
}

func acl(id string, d hns.Direction, a hns.Action, priority uint16, remote string) hns.Policy {
	return hns.ACL{ID: id, Direction: d, Action: a, Protocols: "256", RemoteAddresses: remote, RuleType: hns.Switch, Priority: priority}.Policy()
}

// make makes the endpoint of a pod, as another plugin does.
func (n *node) make(name, ip, namespace string, policies ...hns.Policy) string {
	n.t.Helper()
	e, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: name, HostComputeNetwork: n.network, Policies: policies, SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: ip, PrefixLength: 16}}})
	if err == nil {
		err = n.fake.AttachEndpoint(ctx, namespace, e.ID)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return e.ID
}

func spec(name, ip, namespace string) dataplane.EndpointSpec {
	return dataplane.EndpointSpec{ID: model.MakeEndpointID(name, "eth0"), ContainerID: name, IfName: "eth0", Pod: model.PodID{Namespace: "shop", Name: name},
		NetNS: namespace, IPs: []netip.Addr{netip.MustParseAddr(ip)}}
}

// chained makes the endpoint of a pod, and adds it.
func (n *node) chained(name, ip string, policies ...hns.Policy) dataplane.EndpointSpec {
	n.t.Helper()
	s := spec(name, ip, n.fake.AddNamespace())
	n.make(name, ip, s.NetNS, policies...)
	n.add(s)
	return s
}

func (n *node) add(s dataplane.EndpointSpec) {
	n.t.Helper()
	if _, err := n.backend.AddEndpoint(ctx, s); err != nil {
		n.t.Fatal(err)
	}
}

// state lets only the client reach TCP 80 of pods.
func state(pods ...dataplane.EndpointSpec) *model.State {
	cause := &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}}
	row := func(port80, other model.Verdict) *model.Row {
		return &model.Row{Cells: []model.Decision{{Verdict: other}, {Verdict: port80, Cause: cause}}}
	}
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{
		{Default: row(model.Deny, model.Deny), Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: row(model.Allow, model.Deny)})},
		{Default: row(model.Allow, model.Allow)}}}
	s := &model.State{Policy: model.PolicyState{Endpoints: make(map[model.EndpointID]model.EndpointState), Tables: map[model.TableID]*model.Table{table.ID: table},
		Ports:     []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}},
		Addresses: immutable.MakeMap(map[netip.Addr]model.PeerClass{netip.MustParseAddr(client): 1})}}
	for _, p := range pods {
		s.Policy.Endpoints[p.ID] = model.EndpointState{Pod: p.Pod, IPs: p.IPs, Table: table.ID}
	}
	return s
}

func (n *node) apply(s *model.State) []model.Unsupported {
	n.t.Helper()
	unsupported, err := n.backend.Apply(ctx, s)
	if err != nil {
		n.t.Fatal(err)
	}
	return unsupported
}

// want checks what passes, as text: "in" from the client, "other" from another pod, "out" to it, "wire" to Azure's wire
// server.
func (n *node) want(pod dataplane.EndpointSpec, want string) {
	n.t.Helper()
	var got []string
	for _, p := range []struct {
		name, remote string
		d            hns.Direction
	}{{"in", client, hns.In}, {"other", others, hns.In}, {"out", others, hns.Out}, {"wire", "168.63.129.16", hns.Out}} {
		for i, reading := range hns.Readings() {
			out, err := n.fake.Send(pod.ContainerID, hns.Packet{Direction: p.d, Local: pod.IPs[0], Remote: netip.MustParseAddr(p.remote), Protocol: 6, Port: 80}, reading)
			if err != nil {
				n.t.Fatal(err)
			}
			if out.Allow != (i > 0 && slices.Contains(got, p.name)) && i > 0 {
				n.t.Errorf("%s: depends on the reading %s\n%s", p.name, reading, n.fake.Dump())
			}
			if out.Allow && i == 0 {
				got = append(got, p.name)
			}
		}
	}
	if strings.Join(got, " ") != want {
		n.t.Errorf("%s: %v pass, want %q\n%s", pod.ContainerID, got, want, n.fake.Dump())
	}
}

// unpoliced checks that policy is not in force.
func (n *node) unpoliced(pod dataplane.EndpointSpec) {
	n.t.Helper()
	out, err := n.fake.Send(pod.ContainerID, hns.Packet{Direction: hns.In, Local: pod.IPs[0], Remote: netip.MustParseAddr(others), Protocol: 6, Port: 80}, hns.Reading{})
	if err != nil || !out.Allow {
		n.t.Errorf("a packet that policy denies does not pass: %v\n%s", err, n.fake.Dump())
	}
}

// TestFurtherAddresses checks that policy holds for all addresses of an HNS endpoint, also for those that are not the pod's in
// the API.
func TestFurtherAddresses(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := spec("web", "10.1.0.5", n.fake.AddNamespace())
	further := spec("web", "10.1.0.6", s.NetNS)
	e, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: "web", HostComputeNetwork: n.network, Policies: theirs(), SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: "10.1.0.6", PrefixLength: 16}, {IPAddress: "10.1.0.5", PrefixLength: 16}}})
	if err == nil {
		err = n.fake.AttachEndpoint(ctx, s.NetNS, e.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.add(s)
	n.want(s, "")
	n.want(further, "")
	if got := n.apply(state(s)); len(got) > 0 {
		t.Errorf("unsupported %v", got)
	}
	n.want(s, "in out")
	n.want(further, "in out")
}

// TestPolicyBesideOtherPolicies checks the life of a chained pod: denied, under policy, closed. The policies of the other
// plugin stay, and removal leaves exactly those. HNS may replace by Update all policies or those of a type.
func TestPolicyBesideOtherPolicies(t *testing.T) {
	for _, kind := range []hns.NetworkType{hns.L2Bridge, hns.Overlay, hnstest.L2Tunnel} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, all), func(t *testing.T) {
				n := newNode(t, kind)
				n.fake.UpdateReplacesAll, n.fake.Respell = all, all
				s := spec("web", "10.1.0.5", n.fake.AddNamespace())
				n.make("web", "10.1.0.5", s.NetNS, theirs()...)
				before := n.fake.Dump()
				n.add(s)
				n.want(s, "")
				if got := n.apply(state(s)); len(got) > 0 {
					t.Errorf("unsupported %v", got)
				}
				n.want(s, "in out")
				calls := len(n.fake.Calls())
				n.apply(state(s))
				n.start()
				n.add(s)
				n.want(s, "in out")
				n.apply(state(s))
				for _, c := range n.fake.Calls()[calls:] {
					if strings.HasPrefix(c.Op, "Modify") {
						t.Errorf("a list that is in force was written again: %v", c)
					}
				}
				if list, err := n.backend.Endpoints(ctx); err != nil || len(list) != 1 || len(list[0].Problems) > 0 || list[0].Unenforced {
					t.Errorf("endpoints %+v, %v", list, err)
				}
				if c, err := n.backend.Counters(ctx); err != nil || len(c.Facts) != 1 || !strings.Contains(c.Facts[0], "keeps 3") || !strings.Contains(c.Facts[0], "wireserver") {
					t.Errorf("facts %v, %v", c.Facts, err)
				}
				for range 2 {
					if err := n.backend.DeleteEndpoint(ctx, s.ID); err != nil {
						t.Error(err)
					}
					n.want(s, "")
				}
				if err := foreign.Remove(ctx, n.fake, n.file, 0); err != nil {
					t.Error(err)
				}
				if after := n.fake.Dump(); after != before {
					t.Errorf("after removal\n%s\nbefore\n%s", after, before)
				}
			})
		}
	}
}

// TestRemoveWhilePodsRun uninstalls while policy is in force on pods: chained, adopted, and of a plugin without ACLs. What HNS
// returns about their endpoints, ACLs with their order and bytes among it, is as before. A second removal changes nothing.
func TestRemoveWhilePodsRun(t *testing.T) {
	for _, kind := range []hns.NetworkType{hns.L2Bridge, hns.Overlay, "L2Tunnel"} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, all), func(t *testing.T) {
				n := newNode(t, kind)
				n.fake.UpdateReplacesAll = all
				var pods []dataplane.EndpointSpec
				for i, policies := range [][]hns.Policy{theirs(), theirs()[:1], nil} {
					ip, name := fmt.Sprintf("10.1.0.%d", 20+i), fmt.Sprint("pod", i)
					pods = append(pods, spec(name, ip, n.fake.AddNamespace()))
					n.make(name, ip, pods[i].NetNS, policies...)
				}
				before, dump := n.raw(), n.fake.Dump()
				for _, s := range pods {
					n.add(s)
				}
				n.apply(state(pods...))
				for i, s := range pods {
					n.want(s, []string{"in out", "in out wire", "in out wire"}[i])
				}
				if n.raw() == before {
					t.Fatal("nothing is in force that could be removed")
				}
				for range 2 {
					if err := foreign.Remove(ctx, n.fake, n.file, 0); err != nil {
						t.Error(err)
					}
					if after := n.raw(); after != before {
						t.Errorf("after removal\n%s\nbefore\n%s", after, before)
					}
					if after := n.fake.Dump(); after != dump {
						t.Errorf("after removal\n%s\nbefore\n%s", after, dump)
					}
				}
				if files, err := filepath.Glob(n.file + "*"); err != nil || len(files) > 0 {
					t.Errorf("files are left: %v, %v", files, err)
				}
			})
		}
	}
}

// raw returns the endpoints as HNS describes them.
func (n *node) raw() string {
	n.t.Helper()
	list, err := n.fake.Endpoints(ctx, n.network)
	if err != nil {
		n.t.Fatal(err)
	}
	text, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// TestAllowOfAnotherPlugin checks that an Allow of another plugin never opens what policy denies: everything in its direction is
// denied and reported, until it is gone.
func TestAllowOfAnotherPlugin(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5")
	n.apply(state(s))
	n.want(s, "in out wire")
	list, _ := n.fake.Endpoints(ctx, n.network)
	open := acl("npm", hns.In, hns.Allow, 222, "10.1.0.0/24")
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Add, open); err != nil {
		t.Fatal(err)
	}
	if _, err := n.backend.Idle(ctx); err != nil { // also before the next State
		t.Fatal(err)
	}
	n.want(s, "out wire")
	got := n.apply(state(s))
	if len(got) != 1 || got[0].Effect != model.OverBlocks || got[0].Policy.Name != "web" || got[0].Direction != model.Ingress || !strings.Contains(got[0].Reason, `"npm"`) {
		t.Errorf("reported %v", got)
	}
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Remove, open); err != nil {
		t.Fatal(err)
	}
	if got := n.apply(state(s)); len(got) > 0 {
		t.Errorf("reported %v", got)
	}
	n.want(s, "in out wire")
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Add, acl("first", hns.In, hns.Allow, 100, "")); err != nil {
		t.Fatal(err)
	}
	var at *dataplane.EndpointError
	if _, err := n.backend.Apply(ctx, state(s)); !errors.As(err, &at) || at.ID != s.ID {
		t.Errorf("an Allow that precedes everything: %v", err)
	}
	if f := n.backend.Faults(); len(f) != 1 || !strings.Contains(f[0], "NOT enforced") || !strings.Contains(f[0], `"first"`) {
		t.Errorf("faults %v", f)
	}
}

// TestRecreated checks that policy follows an endpoint that its plugin makes again, and ACLs that another program
// replaces.
func TestRecreated(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	list, _ := n.fake.Endpoints(ctx, n.network)
	if err := n.fake.DeleteEndpoint(ctx, list[0].ID); err != nil {
		t.Fatal(err)
	}
	if got, err := n.backend.Endpoints(ctx); err != nil || len(got) != 1 || len(got[0].Problems) == 0 {
		t.Errorf("without an endpoint: %v, %v", got, err)
	}
	n.apply(state(s)) // nothing to do
	n.make("web", "10.1.0.5", s.NetNS, theirs()...)
	n.unpoliced(s)
	if got, _ := n.backend.Endpoints(ctx); len(got) != 1 || !got[0].Unenforced {
		t.Errorf("recreated: %v", got)
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	n.want(s, "in out")
	list, _ = n.fake.Endpoints(ctx, n.network)
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Update, theirs()...); err != nil {
		t.Fatal(err)
	}
	n.unpoliced(s)
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	n.want(s, "in out")
}

// TestRefusedEndpoints checks what gets no policy, and why.
func TestRefusedEndpoints(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	ns := n.fake.AddNamespace()
	n.make("web", "10.1.0.5", ns)
	for name, c := range map[string]struct {
		spec dataplane.EndpointSpec
		want error
	}{
		"no namespace":     {spec("web", "10.1.0.5", "7d5c6a1e-0000-4000-8000-000000000000"), dataplane.ErrNoNetNS},
		"other namespace":  {spec("web", "10.1.0.5", n.fake.AddNamespace()), dataplane.ErrInterfaceKind},
		"other address":    {spec("web", "10.1.0.6", ns), dataplane.ErrInterfaceKind},
		"handle of no one": {spec("web", "10.1.0.5", dataplane.HandlePrefix+"x"), dataplane.ErrInterfaceKind},
	} {
		_, err := n.backend.AddEndpoint(ctx, c.spec)
		_, found := n.backend.FindInterface(ctx, c.spec)
		if !errors.Is(err, c.want) || !errors.Is(found, c.want) {
			t.Errorf("%s: %v, and the interface is found with error %v, want %v", name, err, found, c.want)
		}
	}
	if mac, err := n.backend.FindInterface(ctx, spec("web", "10.1.0.5", ns)); err != nil || len(mac) != 6 {
		t.Errorf("the interface has MAC %v, %v", mac, err)
	}
	first := spec("first", "10.1.0.9", n.fake.AddNamespace())
	n.make("first", "10.1.0.9", first.NetNS, acl("first", hns.In, hns.Allow, 100, ""))
	if _, err := n.backend.AddEndpoint(ctx, first); !errors.Is(err, dataplane.ErrInterfaceKind) || !strings.Contains(err.Error(), `"first"`) {
		t.Errorf("an Allow that precedes everything: %v", err)
	}
	if err := n.backend.DeleteEndpoint(ctx, first.ID); err != nil {
		t.Error(err)
	}
	if list, err := n.backend.Endpoints(ctx); err != nil || len(list) > 0 {
		t.Errorf("endpoints %v, %v", list, err)
	}
}

// TestAdopted checks pods that no ADD named: the agent finds them, closes them, and attaches them by handle.
func TestAdopted(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := spec("web", "10.1.0.5", n.fake.AddNamespace())
	id := n.make("web", "10.1.0.5", s.NetNS, theirs()...)
	faces := func() dataplane.Interface {
		t.Helper()
		list, err := n.backend.Interfaces(ctx)
		if err != nil || len(list) != 1 || list[0].Handle != dataplane.HandlePrefix+strings.ToLower(id) || !slices.Equal(list[0].Addresses, s.IPs) {
			t.Fatalf("interfaces %+v, %v", list, err)
		}
		return list[0]
	}
	if f := faces(); f.Owner != "" || f.Closed || f.Problem != "" {
		t.Errorf("%+v", f)
	}
	n.unpoliced(s)
	if err := n.backend.CloseInterface(ctx, faces().Handle, "claim"); err != nil {
		t.Fatal(err)
	}
	n.want(s, "")
	n.start()
	if f := faces(); !f.Closed || f.ClosedFor != "claim" {
		t.Errorf("%+v", f)
	}
	list, _ := n.fake.Endpoints(ctx, n.network)
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Update, theirs()...); err != nil {
		t.Fatal(err)
	}
	if f := faces(); f.Closed {
		t.Error("another program has removed the ACLs of a closed endpoint, and it is still called closed")
	}
	s.NetNS = faces().Handle
	n.add(s)
	if f := faces(); f.Owner != s.ID || f.Closed || f.ClosedFor != "" {
		t.Errorf("%+v", f)
	}
	n.apply(state(s))
	n.want(s, "in out")
	if err := n.fake.DeleteEndpoint(ctx, id); err != nil {
		t.Fatal(err)
	}
	if list, err := n.backend.Interfaces(ctx); err != nil || len(list) > 0 {
		t.Errorf("interfaces %v, %v", list, err)
	}
	if err := errors.Join(n.backend.DeleteEndpoint(ctx, s.ID), n.backend.CloseInterface(ctx, s.NetNS, "claim")); err != nil {
		t.Error(err)
	}
}

// TestServiceClients checks that a kube-proxy that hides clients from policy is reported, also without pods.
func TestServiceClients(t *testing.T) {
	for flags, want := range map[uint32]string{0: "kube-proxy balances Services without direct server return", hns.DSRFlag: ""} {
		n := newNode(t, hns.L2Bridge)
		n.fake.Balancers = []hns.LoadBalancer{{FrontendVIPs: []string{"10.96.0.1"}, Flags: flags}}
		if _, err := n.backend.Idle(ctx); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(n.backend.Faults(), "\n"); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("flags %d: faults %q, want %q", flags, got, want)
		}
		if c, err := n.backend.Counters(ctx); err != nil || len(c.Facts) != 1 || !strings.Contains(c.Facts[0], "with direct server return") {
			t.Errorf("flags %d: facts %q, %v", flags, c.Facts, err)
		}
	}
}
