// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
	"go4.org/netipx"
)

// TestCatalogueIsDocumented checks that docs/windows.md has one line for every row and no other
// lines. Each row has triggers, or names the test that covers it.
func TestCatalogueIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../../docs/windows.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(b), "| HNS has been seen to | Isthmus | brought about |\n|---|---|---|\n")
	if !found {
		t.Fatal("docs/windows.md has no table of faults")
	}
	table, _, _ := strings.Cut(rest, "\n\n")
	var want []string
	names := make(map[string]bool)
	for _, r := range Catalogue() {
		how := fmt.Sprintf("in %d ways", len(r.Ways))
		switch {
		case len(r.Ways) == 0:
			how = r.Elsewhere
		case len(r.Ways) == 1:
			how = "in 1 way"
		}
		if (len(r.Ways) == 0) == (r.Elsewhere == "") || r.Fault == "" || r.Answer == "" {
			t.Errorf("row %q needs either ways or a reason, and an answer", r.Fault)
		}
		want = append(want, fmt.Sprintf("| %s | %s | %s |", r.Fault, r.Answer, how))
		for _, w := range r.Ways {
			if names[w.Name] {
				t.Errorf("two ways are called %q", w.Name)
			}
			names[w.Name] = true
			if len(w.Faults) == 0 && w.Do == nil {
				t.Errorf("way %q does nothing", w.Name)
			}
		}
	}
	if got := strings.Join(want, "\n"); got != table {
		t.Errorf("docs/windows.md has\n%s\nwant\n%s", table, got)
	}
}

// TestTriggersAreInjected checks that every trigger can be injected, and that Calm ends it.
func TestTriggersAreInjected(t *testing.T) {
	ctx := context.Background()
	for _, r := range Catalogue() {
		for _, w := range r.Ways {
			fake := hnstest.NewFake(hns.Server2022)
			target := Target{HNS: fake, Faults: new(Faults), Version: hns.Server2022}
			c := &Client{Fake: fake, Faults: target.Faults}
			e := world(t, c, &target)
			if err := target.Strike(w); err != nil {
				t.Error(err)
				continue
			}
			target.Calm()
			if v, err := c.Version(ctx); err != nil || v != hns.Server2022 {
				t.Errorf("%s: afterwards the version is %s, %v", w.Name, v, err)
			}
			if _, err := c.ModifyEndpoint(ctx, e, hns.Add); err != nil && !errors.Is(err, hns.ErrGone) {
				t.Errorf("%s: afterwards: %v", w.Name, err)
			}
		}
	}
}

// world makes a network with an attached endpoint.
func world(t *testing.T, c *Client, target *Target) (endpoint string) {
	t.Helper()
	ctx := context.Background()
	n, err := c.CreateNetwork(ctx, hns.Network{Name: "net", Type: hns.Overlay, Flags: hns.NonPersistent, Ipams: []hns.Ipam{{Subnets: []hns.Subnet{{IPAddressPrefix: "10.1.0.0/24",
		Routes: []hns.Route{{NextHop: "10.1.0.1", DestinationPrefix: "0.0.0.0/0"}}, Policies: []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4096})}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.CreateEndpoint(ctx, hns.Endpoint{Name: "pod", HostComputeNetwork: n.ID})
	if err != nil {
		t.Fatal(err)
	}
	target.Endpoint, target.Namespace = "pod", c.AddNamespace()
	if err := c.AttachEndpoint(ctx, target.Namespace, e.ID); err != nil {
		t.Fatal(err)
	}
	target.Address = netipx.PrefixLastIP(mustPrefix(n)).Prev()
	return e.ID
}

// TestFaultsOfCalls checks the effect of each field of Fault on a call.
func TestFaultsOfCalls(t *testing.T) {
	ctx := context.Background()
	fake := hnstest.NewFake(hns.Server2022)
	target := Target{HNS: fake, Faults: new(Faults), Version: hns.Server2022}
	c := &Client{Fake: fake, Faults: target.Faults}
	e := world(t, c, &target)
	block := hns.ACL{Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 200, Protocols: "256"}.Policy()
	held := func() int {
		got, err := fake.Endpoint(ctx, e)
		acls, _ := got.ACLs()
		if err != nil {
			t.Fatal(err)
		}
		return len(acls)
	}
	for _, f := range []struct {
		Fault
		code uint32
		done bool
	}{
		{Fault{Op: "Modify.endpoint", Times: 1, Code: hns.CodeNotFound, Text: "nicht da"}, hns.CodeNotFound, false},
		{Fault{Op: "Modify.endpoint", Times: 1, Code: hns.CodeNotFound, After: true}, hns.CodeNotFound, true},
		{Fault{Op: "Modify.endpoint", Times: 1, Lie: true}, 0, false},
		{Fault{Op: "Modify.endpoint", Times: 1, PerRule: 30 * time.Millisecond}, 0, true},
		{Fault{Op: "Open.endpoint", Times: 1, Code: hns.CodeNotFound}, hns.CodeNotFound, false},
		{Fault{Op: "Modify.network", Times: 1, Code: hns.CodeNotFound}, 0, true},
		{Fault{Contains: "another network", Code: hns.CodeNotFound}, 0, true},
	} {
		before, hits, began := held(), target.Faults.Hits(), time.Now()
		target.Faults.Set(f.Fault)
		_, err := c.ModifyEndpoint(ctx, e, hns.Add, block)
		if hns.Code(err) != f.code || (held() > before) != f.done {
			t.Errorf("%+v: %v, done %t", f.Fault, err, held() > before)
		}
		if f.Text != "" && !strings.Contains(err.Error(), f.Text) {
			t.Errorf("%+v: %v", f.Fault, err)
		}
		if took := time.Since(began); took < f.PerRule {
			t.Errorf("%+v took %s", f.Fault, took)
		}
		if hit := target.Faults.Hits() > hits; hit == (f.code == 0 && f.done && f.PerRule == 0) {
			t.Errorf("%+v: hit %t", f.Fault, hit)
		}
		target.Calm()
	}
}

// TestAbandonedCalls checks that calls of an ended process take no effect if HNS had not begun
// them.
func TestAbandonedCalls(t *testing.T) {
	ctx := context.Background()
	fake := hnstest.NewFake(hns.Server2022)
	target := Target{HNS: fake, Faults: new(Faults)}
	c := &Client{Fake: fake, Faults: target.Faults}
	e := world(t, c, &target)
	target.Faults.Set(Fault{Op: "Delete.endpoint", Times: 1, Hang: true})
	ended := make(chan error)
	go func() { ended <- c.DeleteEndpoint(ctx, e) }()
	for target.Faults.Hits() == 0 {
		time.Sleep(time.Millisecond)
	}
	target.Faults.Abandon()
	target.Faults.Clear()
	if err := <-ended; err == nil {
		t.Error("the call was done")
	}
	if _, err := fake.Endpoint(ctx, e); err != nil {
		t.Error(err)
	}
}

func mustPrefix(n hns.Network) netip.Prefix {
	return netip.MustParsePrefix(n.Subnets()[0].IPAddressPrefix)
}
