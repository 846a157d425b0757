// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// event is an event on a node.
type event struct {
	kind string // publish, add, del, restart, crash
	pod  *model.Pod
	at   int // the index of the snapshot
}

// story is a random history of a node, and its expected end.
type story struct {
	snapshots []*model.Snapshot
	pods      []*model.Pod // of node1
	events    []event
}

func newStory(seed uint64) story {
	shape := world.Shape{Pods: 14, Policies: 5, Tiers: true, Nodes: 2}
	base := world.Random(seed, shape)
	var s story
	// No policy of the world names this range. Otherwise verdicts would depend on which pod has which
	// address.
	self, _ := base.Nodes.Get("node1")
	moved := *self
	moved.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("172.20.1.0/24")}
	base.Nodes = base.Nodes.With("node1", &moved)
	for _, p := range base.Pods.All() {
		if p.Node == "node1" && p.Policed() {
			local := *p
			local.IPs = nil // the agent decides which
			base.Pods = base.Pods.With(p.PodID, &local)
			s.pods = append(s.pods, &local)
		}
	}
	slices.SortFunc(s.pods, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
	for i := range 4 {
		next := *base
		next.Policies = world.Random(seed+uint64(i)*1000, shape).Policies
		s.snapshots = append(s.snapshots, &next)
	}
	r := rand.New(rand.NewPCG(seed, 9))
	s.events = []event{{kind: "publish"}}
	for i := 1; i < len(s.snapshots); i++ {
		for range 4 {
			if len(s.pods) > 0 {
				kind := []string{"add", "add", "del"}[r.IntN(3)]
				s.events = append(s.events, event{kind: kind, pod: s.pods[r.IntN(len(s.pods))]})
			}
		}
		s.events = append(s.events, event{kind: "publish", at: i})
	}
	return s
}

// variants are other histories with the same end: the events of one pod, and the snapshots, keep
// their order.
var variants = map[string]func(*rand.Rand, []event) []event{
	"as it is": func(_ *rand.Rand, all []event) []event { return all },
	"duplicated": func(_ *rand.Rand, all []event) (out []event) {
		for _, e := range all {
			out = append(out, e, e)
		}
		return out
	},
	"restarted": func(r *rand.Rand, all []event) (out []event) {
		for _, e := range all {
			out = append(out, e)
			if r.IntN(3) == 0 {
				out = append(out, event{kind: []string{"restart", "crash"}[r.IntN(2)]})
			}
		}
		return out
	},
	"snapshots first": func(_ *rand.Rand, all []event) []event {
		return slices.Concat(only(all, "publish"), without(all, "publish"))
	},
	"snapshots last": func(_ *rand.Rand, all []event) []event {
		return slices.Concat(all[:1], without(all, "publish"), only(all[1:], "publish"))
	},
	"pod by pod": func(_ *rand.Rand, all []event) []event {
		calls := without(all, "publish")
		slices.SortStableFunc(calls, func(a, b event) int { return b.pod.PodID.Compare(a.pod.PodID) })
		return slices.Concat(only(all, "publish"), calls)
	},
	"shuffled and restarted": func(r *rand.Rand, all []event) []event {
		calls := without(all, "publish")
		order := r.Perm(50)
		slices.SortStableFunc(calls, func(a, b event) int { return order[len(a.pod.Name)%50] - order[len(b.pod.Name)%50] })
		return slices.Concat(only(all, "publish"), calls, []event{{kind: "crash"}, {kind: "restart"}})
	},
}

func only(all []event, kind string) (out []event) {
	for _, e := range all {
		if e.kind == kind {
			out = append(out, e)
		}
	}
	return out
}

func without(all []event, kind string) (out []event) {
	for _, e := range all {
		if e.kind != kind {
			out = append(out, e)
		}
	}
	return out
}

func podRequest(p *model.Pod) *cniframe.AddRequest {
	name := p.Namespace + "-" + p.Name
	return &cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: name, IfName: "eth0"}, Netns: "/run/netns/" + name,
		PodNamespace: p.Namespace, PodName: p.Name}
}

// play executes a history and returns the addresses of pods.
func (r *rig) play(s story, events []event) map[model.PodID][]netip.Addr {
	r.t.Helper()
	ips := make(map[model.PodID][]netip.Addr)
	last := -1
	r.start()
	for _, e := range events {
		switch e.kind {
		case "publish":
			last = e.at
			r.agent.Publish(s.snapshots[e.at])
		case "add":
			got, err := r.addContext(context.Background(), podRequest(e.pod))
			if err != nil {
				r.t.Fatalf("ADD %s: %v", e.pod, err)
			}
			ips[e.pod.PodID] = got
		case "del":
			if err := r.agent.Del(context.Background(), &cniframe.DelRequest{Attachment: podRequest(e.pod).Attachment}); err != nil {
				r.t.Fatalf("DEL %s: %v", e.pod, err)
			}
			delete(ips, e.pod.PodID)
		case "crash":
			r.crashAt(1)
			r.del(99) // an event that has steps
			<-r.ended
			r.calm()
			r.stop()
			r.restart(s, last)
		case "restart":
			r.end()
			r.restart(s, last)
		}
	}
	r.settle()
	return ips
}

func (r *rig) restart(s story, last int) {
	r.start()
	if last >= 0 {
		r.agent.Publish(s.snapshots[last])
	}
}

// fresh returns the data path after the end of a story is applied to an empty node.
func fresh(t *testing.T, s story, ips map[model.PodID][]netip.Addr) *dataplanetest.Fake {
	t.Helper()
	f := dataplanetest.NewFake(linux)
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for pod, addrs := range ips {
		q := podRequest(&model.Pod{PodID: pod})
		id := model.MakeEndpointID(q.Attachment.ContainerID, "eth0")
		spec := dataplane.EndpointSpec{ID: id, ContainerID: q.Attachment.ContainerID, IfName: "eth0", Pod: pod, NetNS: q.Netns, IPs: addrs}
		if _, err := f.AddEndpoint(context.Background(), spec); err != nil {
			t.Fatal(err)
		}
		endpoints[id] = compile.Endpoint{Pod: pod, IPs: addrs}
	}
	state, _ := compile.Once(compile.Input{Snapshot: s.snapshots[len(s.snapshots)-1], Node: "node1", Endpoints: endpoints})
	if _, err := f.Apply(context.Background(), state); err != nil {
		t.Fatal(err)
	}
	return f
}

// matrix lists which pod reaches which at each port, by names.
func (r *rig) matrix(s story, ips map[model.PodID][]netip.Addr) string {
	peers := make(map[string]netip.Addr)
	for pod, addrs := range ips {
		peers[pod.String()] = addrs[0]
	}
	for _, p := range s.snapshots[0].Pods.All() {
		if p.Node != "node1" && p.Policed() {
			peers[p.PodID.String()] = p.IPs[0]
		}
	}
	var lines []string
	for pod := range ips {
		id := model.MakeEndpointID(pod.Namespace+"-"+pod.Name, "eth0")
		for name, addr := range peers {
			for _, d := range model.Directions {
				for _, port := range []uint16{53, 80, 443} {
					for _, proto := range model.PortProtocols {
						lines = append(lines, fmt.Sprintf("%s %s %s %s %d %s", pod, d, name, proto, port, r.fake.Decide(id, d, addr, proto, port)))
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestReplay plays random histories in several orders, with repetitions, restarts and crashes, and expects
// the same end.
func TestReplay(t *testing.T) {
	stories := uint64(12)
	if testing.Short() {
		stories = 3
	}
	compared := 0
	for seed := range stories {
		s := newStory(seed)
		ends := make(map[string]string)
		for name, variant := range variants {
			t.Run(fmt.Sprintf("%d/%s", seed, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					ips := r.play(s, variant(rand.New(rand.NewPCG(seed, 5)), s.events))
					if got, want := r.fake.Dump(), fresh(t, s, ips).Dump(); got != want {
						t.Errorf("the data path is\n%s\nwant\n%s", got, want)
					}
					ends[name] = r.matrix(s, ips)
					compared += strings.Count(ends[name], "\n")
					r.end()
				})
			})
		}
		for name, end := range ends {
			if end != ends["as it is"] {
				t.Errorf("story %d, %s: ends otherwise than as it is", seed, name)
			}
		}
	}
	if compared < 1000 {
		t.Errorf("only %d decisions compared", compared)
	}
	t.Logf("decisions=%d", compared)
}
