// SPDX-License-Identifier: Apache-2.0

package dataplanetest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var ctx = context.Background()

func specOf(n int) dataplane.EndpointSpec {
	c := fmt.Sprintf("c%d", n)
	return dataplane.EndpointSpec{ID: model.MakeEndpointID(c, "eth0"), ContainerID: c, IfName: "eth0", NetNS: "/n/" + c,
		Pod: model.PodID{Namespace: "x", Name: c}, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(n)})}}
}

func newFake(t *testing.T, endpoints int) *dataplanetest.Fake {
	t.Helper()
	f := dataplanetest.NewFake(model.Features{OS: model.Linux})
	for n := range endpoints {
		if _, err := f.AddEndpoint(ctx, specOf(n+2)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestFakeRefuses(t *testing.T) {
	f := newFake(t, 1)
	f.RemoveNetNS("/n/gone")
	f.OccupyInterface("/n/theirs", "eth0")
	for text, change := range map[string]func(*dataplane.EndpointSpec){
		"is in use by endpoint c2:eth0":     func(s *dataplane.EndpointSpec) { s.IPs = specOf(2).IPs },
		"eth0 of c2:eth0: interface exists": func(s *dataplane.EndpointSpec) { s.NetNS = "/n/c2" },
		"eth0: interface exists":            func(s *dataplane.EndpointSpec) { s.NetNS = "/n/theirs" },
		"network namespace not found":       func(s *dataplane.EndpointSpec) { s.NetNS = "/n/gone" },
		"identity does not fit":             func(s *dataplane.EndpointSpec) { s.ID = "other" },
		"are needed":                        func(s *dataplane.EndpointSpec) { s.NetNS = "" },
		"pod has no name":                   func(s *dataplane.EndpointSpec) { s.Pod.Name = "" },
		"want one or two":                   func(s *dataplane.EndpointSpec) { s.IPs = nil },
		"of different families":             func(s *dataplane.EndpointSpec) { s.IPs = append(s.IPs, netip.MustParseAddr("10.0.1.99")) },
		"cannot be used on linux":           func(s *dataplane.EndpointSpec) { s.IPs = []netip.Addr{netip.MustParseAddr("fd00::2")} },
	} {
		s := specOf(3)
		change(&s)
		if _, err := f.AddEndpoint(ctx, s); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	same := specOf(2)
	same.Pod.Name = "other"
	if _, err := f.AddEndpoint(ctx, same); err == nil {
		t.Error("an attachment was adopted for another pod")
	}
	if all, err := f.Endpoints(ctx); err != nil || len(all) != 1 || len(all[0].Problems) > 0 {
		t.Errorf("attached: %v, %v", all, err)
	}
	if _, err := f.Apply(ctx, nil); err == nil {
		t.Error("no state was applied")
	}
}

func TestFakeFailsAndHangsAndCrashes(t *testing.T) {
	f := newFake(t, 0)
	fail := errors.New("no")
	f.SetFault(func(_ context.Context, step string) error {
		if step == "add.addresses" {
			return fail
		}
		return nil
	})
	if _, err := f.AddEndpoint(ctx, specOf(2)); !errors.Is(err, fail) {
		t.Errorf("got %v", err)
	}
	if all, _ := f.Endpoints(ctx); len(all) > 0 {
		t.Errorf("after an error %v is left", all)
	}
	ended := make(chan struct{})
	f.SetFault(func(_ context.Context, step string) error {
		if step == "add.addresses" {
			f.SetFault(nil)
			runtime.Goexit()
		}
		return nil
	})
	go func() {
		defer close(ended)
		f.AddEndpoint(ctx, specOf(2))
	}()
	<-ended
	all, err := f.Endpoints(ctx)
	if err != nil || len(all) != 1 || fmt.Sprint(all[0].Problems) != "[addresses is missing routes is missing]" {
		t.Errorf("after a crash: %v, %v", all, err)
	}
	if _, err := f.AddEndpoint(ctx, specOf(2)); err != nil {
		t.Errorf("what the crash left is not completed: %v", err)
	}
	entered := make(chan struct{})
	f.SetFault(func(c context.Context, _ string) error {
		close(entered)
		<-c.Done()
		return nil
	})
	c, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- f.DeleteEndpoint(c, specOf(2).ID) }()
	<-entered
	if _, err := f.Endpoints(ctx); err == nil || !strings.Contains(err.Error(), "two goroutines") {
		t.Errorf("two goroutines at once: %v", err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	f.SetFault(nil)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Endpoints(ctx); err == nil {
		t.Error("works after Close")
	}
}

// TestFakeReportsSingleEndpoints applies a State that names an endpoint that
// is not attached.
func TestFakeReportsSingleEndpoints(t *testing.T) {
	f := newFake(t, 1)
	state := compileFor(world.Random(8, world.Shape{Pods: 8, Policies: 3}), 2, 3)
	_, err := f.Apply(ctx, state)
	if !dataplane.Concerns(err, specOf(3).ID) || dataplane.Concerns(err, specOf(2).ID) || dataplane.Concerns(err, "") {
		t.Errorf("got %v", err)
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("x"), true},
		{&dataplane.EndpointError{ID: "a"}, true},
		{&dataplane.EndpointError{ID: "b"}, false},
		{fmt.Errorf("apply: %w", &dataplane.EndpointError{ID: "b"}), false},
		{errors.Join(&dataplane.EndpointError{ID: "b"}, &dataplane.EndpointError{ID: "a"}), true},
		{errors.Join(&dataplane.EndpointError{ID: "b"}, errors.New("x")), true},
		{fmt.Errorf("x: %w", errors.New("y")), true},
	} {
		if got := dataplane.Concerns(c.err, "a"); got != c.want {
			t.Errorf("%v concerns a: %t", c.err, got)
		}
	}
}

// compileFor compiles endpoints of the first pods of node1.
func compileFor(s *model.Snapshot, endpoints ...int) *model.State {
	var pods []model.PodID
	for _, p := range s.Pods.All() {
		if p.Node == "node1" && p.Policed() {
			pods = append(pods, p.PodID)
		}
	}
	slices.SortFunc(pods, model.PodID.Compare)
	in := compile.Input{Snapshot: s, Node: "node1", Endpoints: make(map[model.EndpointID]compile.Endpoint)}
	for i, n := range endpoints {
		in.Endpoints[specOf(n).ID] = compile.Endpoint{Pod: pods[i], IPs: specOf(n).IPs}
	}
	state, _ := compile.Once(in)
	return state
}

// TestFakeDump compares with a golden text, and checks that it does not depend on class numbers.
func TestFakeDump(t *testing.T) {
	shape := world.Shape{Pods: 8, Policies: 4, Nodes: 2, Tiers: true}
	f, detour := newFake(t, 2), newFake(t, 2)
	if _, err := f.Apply(ctx, compileFor(world.Random(15, shape), 2)); err != nil {
		t.Fatal(err)
	}
	state := compileFor(world.Random(8, shape), 2, 3)
	for _, s := range []*model.State{state, compileFor(world.Random(15, shape), 2)} {
		if _, err := detour.Apply(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	if f.Dump() != detour.Dump() {
		t.Errorf("decides alike, but the dumps are\n%s\nand\n%s", f.Dump(), detour.Dump())
	}
	f.Break("c3:eth0", "routes")
	const golden = "testdata/fake_dump.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(f.Dump()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if f.Dump() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", f.Dump(), want)
	}
}
