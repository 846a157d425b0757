// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

func spare(ip string) dataplane.Prepared {
	return dataplane.Prepared{IPs: []netip.Addr{netip.MustParseAddr(ip)}, DNS: clusterFirst("10.96.0.10")}
}

// prepare makes a prepared endpoint.
func (n *node) prepare(p dataplane.Prepared) error {
	done := make(chan struct{})
	finish, err := n.backend.Prepare(ctx, p, func() { close(done) })
	if err != nil {
		return err
	}
	<-done
	return finish(ctx)
}

func (n *node) mustPrepare(p dataplane.Prepared) {
	n.t.Helper()
	if err := n.prepare(p); err != nil {
		n.t.Fatal(err)
	}
}

// attach runs an ADD as a started attachment.
func (n *node) attach(spec dataplane.EndpointSpec) error {
	done := make(chan struct{})
	finish, err := n.backend.StartEndpoint(ctx, spec, func() { close(done) })
	if err != nil {
		return err
	}
	<-done
	_, err = finish(ctx)
	return err
}

func (n *node) mustAttach(spec dataplane.EndpointSpec) {
	n.t.Helper()
	if err := n.attach(spec); err != nil {
		n.t.Fatal(err)
	}
}

// wantPod checks that a pod's only endpoint is complete.
func (n *node) wantPod(spec dataplane.EndpointSpec) {
	n.t.Helper()
	found, err := n.backend.Endpoints(ctx)
	if err != nil || len(found) != 1 || found[0].ID != spec.ID || len(found[0].Problems) > 0 {
		n.t.Fatalf("endpoints %+v, %v\n%s", found, err, n.fake.Dump())
	}
}

// wantPrepared checks which prepared endpoints are ready.
func (n *node) wantPrepared(want ...string) {
	n.t.Helper()
	if _, err := n.backend.Endpoints(ctx); err != nil {
		n.t.Fatal(err)
	}
	var got []string
	for _, p := range n.backend.Prepared() {
		got = append(got, p.IPs[0].String())
	}
	if !slices.Equal(got, want) {
		n.t.Fatalf("ready: %v, want %v\n%s", got, want, n.fake.Dump())
	}
}

func poolConfig(t *testing.T, c windows.Config) windows.Config {
	c.PreparedFile = filepath.Join(t.TempDir(), "prepared-endpoints.json")
	return c
}

// TestPreparedEndpoint checks on every release and mode that a pod gets an endpoint that was made
// before it. Policy, restarts of the agent, an audit and DEL treat that endpoint as any other.
func TestPreparedEndpoint(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		n.config = poolConfig(t, n.config)
		n.start()
		before := n.fake.Dump()
		n.mustPrepare(spare("10.0.1.7"))
		n.wantPrepared("10.0.1.7")
		n.start() // it survives the agent
		n.apply(&model.State{})
		n.wantPrepared("10.0.1.7")
		spec := n.spec("c1", "10.0.1.7")
		spec.DNS = clusterFirst("10.96.0.10")
		n.fake.ForgetCalls()
		n.fake.Before(func(op, _ string) error {
			if op == "AttachEndpoint" {
				n.wantDenied()
			}
			return nil
		})
		n.mustAttach(spec)
		n.fake.Before(nil)
		if made, attached := n.count("CreateEndpoint"), n.count("AttachEndpoint"); made != 0 || attached != 1 {
			t.Errorf("%d endpoints created, %d attached", made, attached)
		}
		n.wantPrepared()
		state := peerState(spec, "10.0.3.3")
		n.apply(state)
		n.wantPod(spec)
		n.start()
		n.add(spec) // as the next agent does
		n.wantPod(spec)
		if drift, err := n.backend.Audit(ctx, state); err != nil || len(drift) > 0 {
			t.Errorf("audit: %v, %v", drift, err)
		}
		for remote, pass := range map[string]bool{"10.0.3.3": true, "10.0.3.4": false} {
			if n.sendTo("spare-10.0.1.7_prepared-endpoint_isthmus", remote) != pass {
				t.Errorf("%s passes: %t", remote, !pass)
			}
		}
		if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		n.fake.RemoveNamespace(spec.NetNS)
		n.apply(&model.State{})
		if got := n.fake.Dump(); got != before {
			t.Errorf("left:\n%s", got)
		}
		if _, err := os.Stat(n.config.PreparedFile); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left: %s, %v", n.config.PreparedFile, err)
		}
	})
}

// sendTo sends a TCP packet for port 80 to the endpoint of a name.
func (n *node) sendTo(name, remote string) bool {
	n.t.Helper()
	out, err := n.fake.Send(name, hns.Packet{Direction: acl.PacketDirection(model.Ingress), Remote: netip.MustParseAddr(remote), Protocol: uint8(model.TCP), Port: 80}, hns.Reading{})
	if err != nil {
		n.t.Fatal(err)
	}
	return out.Allow
}

// wantDenied checks that all endpoints besides the host's deny everything.
func (n *node) wantDenied() {
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Error(err)
	}
	for _, e := range list {
		if acls, err := e.ACLs(); e.Name != "isthmus_ep" && (err != nil || !acl.Equal(acls, acl.DenyAll())) {
			n.t.Errorf("endpoint %s is open: %v, %v", e.Name, acls, err)
		}
	}
}

// TestPreparedEndpointUnfit checks that an endpoint that does not fit the pod is not used, and does
// not conflict with it.
func TestPreparedEndpointUnfit(t *testing.T) {
	for name, change := range map[string]func(*node, *dataplane.EndpointSpec){
		"other DNS settings": func(_ *node, s *dataplane.EndpointSpec) { s.DNS = clusterFirst("10.96.0.11") },
		"no DNS settings":    func(_ *node, s *dataplane.EndpointSpec) { s.DNS = model.DNS{} },
		"a host port": func(_ *node, s *dataplane.EndpointSpec) {
			s.HostPorts = []model.HostPort{{Number: 8080, Port: 80, Protocol: model.TCP}}
		},
		"a limit":       func(_ *node, s *dataplane.EndpointSpec) { s.Bandwidth.Egress = model.Limit{Rate: 1e6, Burst: 1e6} },
		"hns restarted": func(n *node, _ *dataplane.EndpointSpec) { n.fake.Lose() },
		"other ids":     func(n *node, _ *dataplane.EndpointSpec) { n.fake.Rehydrate() },
		"the list is lost": func(n *node, _ *dataplane.EndpointSpec) {
			n.config.PreparedFile = ""
			n.start()
		},
		"the list is damaged": func(n *node, _ *dataplane.EndpointSpec) {
			if err := os.WriteFile(n.config.PreparedFile, []byte(`{"x":{"dns":{"searches":["a b"]}}}`), 0o600); err != nil {
				n.t.Fatal(err)
			}
			n.start()
		},
		"it vanishes": func(n *node, _ *dataplane.EndpointSpec) {
			n.fake.Before(func(op, _ string) error {
				if op == "AttachEndpoint" {
					n.fake.Before(nil)
					n.fake.Lose()
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, hns.Server2022, poolConfig(t, bridgeConfig()))
			n.mustPrepare(spare("10.0.1.7"))
			spec := n.spec("c1", "10.0.1.7")
			spec.DNS = clusterFirst("10.96.0.10")
			change(n, &spec)
			if err := n.attach(spec); err != nil {
				if name != "it vanishes" { // the network is lost too
					t.Fatal(err)
				}
				n.mustAttach(spec)
			}
			n.apply(peerState(spec, "10.0.3.3"))
			n.wantPod(spec)
			n.wantPrepared()
			if faults := n.backend.Faults(); len(faults) > 0 { // among them endpoints with other DNS settings
				t.Error(faults)
			}
			if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
				t.Fatal(err)
			}
			if found, err := n.backend.Endpoints(ctx); err != nil || len(found) > 0 || strings.Contains(n.fake.Dump(), "10.0.1.7") {
				t.Errorf("left: %v, %v\n%s", found, err, n.fake.Dump())
			}
		})
	}
}

// TestPreparedEndpointDrift checks that changes of a prepared endpoint by other processes are
// found. An opened one is closed by the next Apply, and before a pod gets it. A damaged one is
// listed, so that it is removed.
func TestPreparedEndpointDrift(t *testing.T) {
	open := func(n *node) {
		list := acl.DenyAll()
		for i := range list {
			list[i].Action = hns.Allow
		}
		n.changeACLs("spare-10.0.1.7_prepared-endpoint_isthmus", list...)
	}
	n := newNode(t, hns.Server2022, poolConfig(t, bridgeConfig()))
	n.mustPrepare(spare("10.0.1.7"))
	n.apply(&model.State{})
	open(n)
	drift, err := n.backend.Audit(ctx, &model.State{})
	if err != nil || len(drift) != 1 || drift[0].Object != "acl list" || drift[0].Endpoint != "spare-10.0.1.7:prepared-endpoint" {
		t.Fatalf("audit: %+v, %v", drift, err)
	}
	n.apply(&model.State{})
	n.wantDenied()
	n.wantPrepared("10.0.1.7")
	open(n)
	spec := n.spec("c1", "10.0.1.7")
	spec.DNS = clusterFirst("10.96.0.10")
	n.fake.Before(func(op, _ string) error {
		if op == "AttachEndpoint" {
			n.wantDenied()
		}
		return nil
	})
	n.mustAttach(spec)
	n.fake.Before(nil)
	n.wantPod(spec)

	n.mustPrepare(spare("10.0.1.8"))
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name, "spare-10.0.1.8") {
			if err := n.fake.AttachEndpoint(ctx, n.fake.AddNamespace(), e.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := n.backend.Endpoints(ctx)
	if err != nil || !slices.ContainsFunc(found, func(i dataplane.Installed) bool { return i.ID == "spare-10.0.1.8:prepared-endpoint" }) {
		t.Fatalf("an attached endpoint without a pod is not listed: %+v, %v", found, err)
	}
	if len(n.backend.Prepared()) > 0 {
		t.Error("it counts as ready")
	}
	if err := n.backend.DeleteEndpoint(ctx, "spare-10.0.1.8:prepared-endpoint"); err != nil {
		t.Fatal(err)
	}
	n.wantPod(spec)
}

// changeACLs replaces the ACLs of an endpoint, as another process would.
func (n *node) changeACLs(name string, list ...hns.ACL) {
	n.t.Helper()
	all, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range all {
		if e.Name != name {
			continue
		}
		policies := slices.DeleteFunc(e.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeACL) })
		for _, a := range list {
			policies = append(policies, a.Policy())
		}
		if _, err := n.fake.ModifyEndpoint(ctx, e.ID, hns.Update, policies...); err != nil {
			n.t.Fatal(err)
		}
		return
	}
	n.t.Fatalf("no endpoint %s", name)
}

// TestPrepareFails checks that nothing remains after an error, and after a call that HNS answers
// too late.
func TestPrepareFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hang := range []bool{false, true} {
			c := poolConfig(t, bridgeConfig())
			c.CallDeadline = 50 * time.Millisecond
			n := newNode(t, hns.Server2022, c)
			before := n.fake.Dump()
			release := make(chan struct{})
			n.fake.After(func(op, _ string) error {
				switch {
				case op != "CreateEndpoint":
					return nil
				case hang:
					<-release
					return nil
				}
				return hns.NewError(op, hns.CodeInvalidPolicy, "injected")
			})
			if err := n.prepare(spare("10.0.1.7")); err == nil {
				t.Error("no error")
			}
			close(release)
			n.fake.After(nil)
			for range 100 {
				if _, err := n.backend.Idle(ctx); err == nil && n.fake.Dump() == before {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if got := n.fake.Dump(); got != before {
				t.Errorf("hang %t: left:\n%s", hang, got)
			}
			n.wantPrepared()
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				err := n.prepare(spare("10.0.1.7"))
				if err == nil {
					break
				}
				if hns.Code(err) != hns.CodeBusy || time.Now().After(end) { // the late call has not returned yet
					t.Fatal(err)
				}
			}
			n.wantPrepared("10.0.1.7")
			if err := n.prepare(spare("10.0.1.7")); err == nil || !strings.Contains(err.Error(), "has the address") {
				t.Errorf("a second one: %v", err)
			}
		}
	})
}

// TestCrashWithPool kills the agent between any two steps of preparing an endpoint, of an ADD that
// uses it, and of DEL. Nothing is left, and the same calls complete.
func TestCrashWithPool(t *testing.T) {
	points := 0
	for at := 1; ; at++ {
		n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: poolConfig(t, bridgeConfig())}
		var spec dataplane.EndpointSpec
		all := func() {
			if spec.ID == "" {
				spec = n.spec("c1", "10.0.1.7")
				spec.DNS = clusterFirst("10.96.0.10")
			}
			if len(n.backend.Prepared()) == 0 && n.count("AttachEndpoint") < 2 {
				n.mustPrepare(spare("10.0.1.7"))
			}
			n.mustAttach(spec)
			n.apply(peerState(spec, "10.0.3.3"))
			if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
				t.Fatal(err)
			}
		}
		crashed := n.during(at, all)
		points++
		n.start()
		n.wantDeniedOrPolicy(spec)
		if spec.ID != "" {
			if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil { // as the next agent does with an unfinished ADD
				t.Fatal(err)
			}
		}
		collect(t, n)
		for _, p := range n.backend.Prepared() {
			if err := n.backend.Discard(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(n.fake.Dump(), "10.0.1.7") {
			t.Errorf("crash at step %d: left:\n%s", at, n.fake.Dump())
		}
		n.fake.ForgetCalls()
		all()
		if !crashed {
			break
		}
	}
	if points < 12 {
		t.Errorf("only %d crash points", points)
	}
}

// wantDeniedOrPolicy checks that no endpoint passes more than peerState allows.
func (n *node) wantDeniedOrPolicy(spec dataplane.EndpointSpec) {
	n.t.Helper()
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range list {
		if strings.Contains(e.Name, "prepared-endpoint") && e.HostComputeNamespace != "" && n.sendTo(e.Name, "10.0.3.9") {
			n.t.Errorf("endpoint %s of %s is open", e.Name, spec.ID)
		}
	}
}

// TestPreparedNAT checks that prepared endpoints follow changes of the NAT exceptions, like those
// of pods.
func TestPreparedNAT(t *testing.T) {
	c := poolConfig(t, bridgeConfig())
	n := newNode(t, hns.Server2022, c)
	n.mustPrepare(spare("10.0.1.7"))
	n.config.OutboundNATExceptions = append(slices.Clone(n.config.OutboundNATExceptions), netip.MustParsePrefix("172.20.0.0/16"))
	n.start()
	found, err := n.backend.Endpoints(ctx)
	if err != nil || len(found) != 1 || !strings.Contains(strings.Join(found[0].Problems, ""), "172.20.0.0/16") {
		t.Fatalf("a prepared endpoint with other exceptions is not listed: %+v, %v", found, err)
	}
	spec := n.spec("c1", "10.0.1.7")
	spec.DNS = clusterFirst("10.96.0.10")
	n.mustAttach(spec)
	n.wantPod(spec)
}
