// SPDX-License-Identifier: Apache-2.0

package adoption_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/adoption"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// node is Claims with what surrounds it.
type node struct {
	t        *testing.T
	claims   *adoption.Claims
	old      *model.Snapshot
	now      time.Time
	attached []adoption.Attached
	faces    []dataplane.Interface
	observed bool
}

func newNode(t *testing.T) *node {
	return &node{t: t, claims: adoption.New("n"), now: time.Unix(1000, 0)}
}

func addrs(all ...string) (ips []netip.Addr) {
	for _, a := range all {
		ips = append(ips, netip.MustParseAddr(a))
	}
	return ips
}

// pod is a pod of the node, named by its UID, created at a time.
func pod(name string, created int64, ips ...string) *model.Pod {
	return &model.Pod{PodID: model.PodID{Namespace: "s", Name: name}, UID: "uid-" + name, Node: "n", Created: created, IPs: addrs(ips...)}
}

func face(handle string, ips ...string) dataplane.Interface {
	return dataplane.Interface{Handle: handle, Name: "veth-" + handle, IfName: "eth0", Addresses: addrs(ips...)}
}

// compare takes the pods and compares. It performs the Result, and returns it as text.
func (n *node) compare(pods ...*model.Pod) string {
	n.t.Helper()
	s := model.MakeSnapshot(nil, nil, pods, nil)
	n.claims.Take(n.old, s, n.now)
	n.old = s
	r := n.claims.Compare(n.attached, n.faces, func(model.PodID) bool { return false }, func(string) bool { return n.observed })
	var done []string
	for _, id := range r.Gone {
		done = append(done, "gone "+string(id))
		n.drop(id)
	}
	for _, c := range r.Close {
		done = append(done, "close "+c.Interface.Handle+" for "+c.Claim)
		for i := range n.faces {
			if n.faces[i].Handle == c.Interface.Handle {
				n.faces[i].Closed, n.faces[i].ClosedFor = true, c.Claim
			}
		}
	}
	for _, m := range r.Adopt {
		done = append(done, "adopt "+m.Pod.Name+" on "+m.Interface.Handle)
		n.drop(m.Interface.Owner)
		id := model.EndpointID(m.Pod.Name)
		n.attached = append(n.attached, adoption.Attached{ID: id, Pod: m.Pod.PodID, UID: m.Pod.UID, IPs: m.Pod.IPs, Handle: m.Interface.Handle})
		for i := range n.faces {
			if n.faces[i].Handle == m.Interface.Handle {
				n.faces[i].Owner, n.faces[i].Closed, n.faces[i].ClosedFor = id, false, ""
			}
		}
		n.claims.Failed(m.Pod.PodID, "")
	}
	return strings.Join(done, ", ")
}

func (n *node) drop(id model.EndpointID) {
	var left []adoption.Attached
	for _, a := range n.attached {
		if a.ID != id {
			left = append(left, a)
		}
	}
	n.attached = left
}

func (n *node) want(got, want string) {
	n.t.Helper()
	if got != want {
		n.t.Errorf("got %q, want %q", got, want)
	}
}

// wantUnpoliced checks the pods that are reported after the grace period.
func (n *node) wantUnpoliced(parts ...string) {
	n.t.Helper()
	all := n.claims.Unpoliced(n.now.Add(time.Minute))
	if len(all) != len(parts) {
		n.t.Fatalf("unpoliced %v, want %q", all, parts)
	}
	for i, u := range all {
		if !strings.Contains(u.Pod.String()+": "+u.Why, parts[i]) {
			n.t.Errorf("unpoliced %v, want %q", u, parts[i])
		}
	}
}

// Pods that ran before the agent are adopted, those of other nodes and of the host network are not.
func TestRunningPods(t *testing.T) {
	n := newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1", "fd00::1"), face("2", "10.0.0.2"), face("3", "10.0.0.3"), face("4", "172.17.0.2")}
	far, host, done := pod("far", 1, "10.0.0.3"), pod("host", 1, "10.0.0.3"), pod("done", 1, "10.0.0.3")
	far.Node, host.HostNetwork, done.Finished = "other", true, true
	n.want(n.compare(pod("a", 1, "10.0.0.1", "fd00::1"), pod("b", 1, "10.0.0.2"), far, host, done, pod("new", 1)), "adopt a on 1, adopt b on 2")
	n.wantUnpoliced()
	n.want(n.compare(pod("a", 1, "fd00::1", "10.0.0.1"), pod("b", 1, "10.0.0.2")), "")
	n.faces = n.faces[1:]
	n.want(n.compare(pod("a", 1, "fd00::1", "10.0.0.1"), pod("b", 1, "10.0.0.2")), "gone a")
	n.wantUnpoliced() // a is ending
	n.want(n.compare(pod("b", 1, "10.0.0.2"), pod("c", 1, "10.0.0.9")), "")
	n.wantUnpoliced("s/c: no veth pair of this node ends at an interface with the address 10.0.0.9")
	if all := n.claims.Unpoliced(n.now); len(all) > 0 {
		t.Errorf("a pod is reported when it appears: %v", all)
	}
}

// The interface of an observed pod stays open when its address moves. The report does not promise that it is closed.
func TestAddressMovesObserved(t *testing.T) {
	n := newNode(t)
	a := pod("a", 1, "10.0.0.1")
	n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
	n.want(n.compare(a), "adopt a on 1")
	n.faces, n.observed = []dataplane.Interface{face("2", "10.0.0.1")}, true
	n.want(n.compare(a), "gone a")
	n.wantUnpoliced("s/a: interface veth-2 got the address 10.0.0.1 after the API gave it to the pod: its packets pass without a verdict")
	n.observed = false
	n.want(n.compare(a), "close 2 for s/a/uid-a")
	n.wantUnpoliced("it drops every packet")
}

// The next pod gets the address of an earlier one before the API says so: its interface is closed, and never under
// the policy of the earlier pod, also after a restart of the agent.
func TestAddressMoves(t *testing.T) {
	for _, restart := range []bool{false, true} {
		n := newNode(t)
		a := pod("a", 1, "10.0.0.1")
		n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
		n.want(n.compare(a), "adopt a on 1")
		n.faces = []dataplane.Interface{face("2", "10.0.0.1")}
		n.want(n.compare(a), "gone a, close 2 for s/a/uid-a")
		if restart {
			n.claims, n.old = adoption.New("n"), nil
		}
		n.want(n.compare(a), "")
		n.wantUnpoliced("s/a: interface veth-2 got the address 10.0.0.1 after")
		b := pod("b", 2, "10.0.0.1")
		n.want(n.compare(a, b), "adopt b on 2")
		n.wantUnpoliced()
		n.want(n.compare(b), "")
		n.wantUnpoliced()
	}
}

// A restart between the end of an interface and the next one: the claim of the API is known again before the
// interface appears.
func TestAddressMovesLater(t *testing.T) {
	n := newNode(t)
	a := pod("a", 1, "10.0.0.1")
	n.want(n.compare(a), "")
	n.faces = []dataplane.Interface{face("2", "10.0.0.1")}
	n.want(n.compare(a), "close 2 for s/a/uid-a")
	// A successor of the same name has another UID.
	next := pod("a", 2, "10.0.0.1")
	next.UID = "uid-next"
	n.want(n.compare(next), "adopt a on 2")
}

// A pod gives itself the address of another. It has an address of its own, so it does not become the other.
func TestStolenAddress(t *testing.T) {
	n := newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1"), face("2", "10.0.0.2", "10.0.0.1")}
	n.want(n.compare(pod("victim", 1, "10.0.0.1"), pod("thief", 1, "10.0.0.2")), "adopt thief on 2, adopt victim on 1")
	// The interface of the victim disappears. That of the thief does not change.
	n.faces = n.faces[1:]
	n.want(n.compare(pod("victim", 1, "10.0.0.1"), pod("thief", 1, "10.0.0.2")), "gone victim")
	n.want(n.compare(pod("other", 1, "10.0.0.1"), pod("thief", 1, "10.0.0.2")), "")
	n.wantUnpoliced("s/other: no veth pair")
	// Nothing tells two interfaces apart.
	n = newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1"), face("2", "10.0.0.1")}
	n.want(n.compare(pod("a", 1, "10.0.0.1")), "")
	n.wantUnpoliced("s/a: interfaces veth-1, veth-2 all have the address 10.0.0.1")
}

// An interface whose addresses cannot be read is no pod's, and is named in the report about a pod without an interface.
// Other pods are adopted, also one whose address the unreadable interface may have.
func TestUnreadableInterface(t *testing.T) {
	n := newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1"), {Handle: "2", Name: "veth-2", Problem: "interface veth-2: it has more than 256 addresses"}}
	n.want(n.compare(pod("a", 1, "10.0.0.1"), pod("many", 1, "10.0.0.2")), "adopt a on 1")
	n.wantUnpoliced("s/many: no veth pair of this node ends at an interface with the address 10.0.0.2")
	n.wantUnpoliced("interface veth-2: it has more than 256 addresses")
	n.faces[1] = face("2", "10.0.0.2")
	n.want(n.compare(pod("a", 1, "10.0.0.1"), pod("many", 1, "10.0.0.2")), "adopt many on 2")
	// A pod under policy keeps its endpoint.
	n.faces[1].Addresses, n.faces[1].Problem = nil, "interface veth-2: it has more than 256 addresses"
	n.want(n.compare(pod("a", 1, "10.0.0.1"), pod("many", 1, "10.0.0.2"), pod("late", 1, "10.0.0.3")), "")
	n.wantUnpoliced("s/late: no veth pair of this node ends at an interface with the address 10.0.0.3: restart the pod; macvlan, ipvlan and pass-through interfaces are not supported")
}

// The API is late in removing a pod that no interface belongs to; the younger pod has the address.
func TestYoungerPod(t *testing.T) {
	n := newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
	n.want(n.compare(pod("old", 1, "10.0.0.1"), pod("young", 2, "10.0.0.1")), "adopt young on 1")
	n.wantUnpoliced()
	// It was adopted for the wrong pod, before the API named the right one.
	n = newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
	n.want(n.compare(pod("old", 1, "10.0.0.1")), "adopt old on 1")
	n.want(n.compare(pod("old", 1, "10.0.0.1"), pod("young", 2, "10.0.0.1")), "adopt young on 1")
}

// A static pod has another UID in its endpoint. Its endpoint ends like others.
func TestStaticPodEnds(t *testing.T) {
	n := newNode(t)
	a := pod("a", 1, "10.0.0.1")
	n.attached = []adoption.Attached{{ID: "c:eth0", Pod: a.PodID, UID: strings.Repeat("0a", 16), IPs: a.IPs}}
	n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
	n.faces[0].Owner = "c:eth0"
	n.want(n.compare(a), "")
	n.claims.Ended(n.attached[0])
	n.drop("c:eth0")
	n.faces[0].Owner = ""
	n.want(n.compare(a), "close 1 for s/a/uid-a") // it must not be adopted while it ends
}

// The sandbox of a pod is made again, and the API says so before the first comparison without the former interface.
func TestNextAddress(t *testing.T) {
	n := newNode(t)
	n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
	n.want(n.compare(pod("a", 1, "10.0.0.1")), "adopt a on 1")
	n.faces = []dataplane.Interface{face("2", "10.0.0.2")}
	n.want(n.compare(pod("a", 1, "10.0.0.2")), "gone a, adopt a on 2")
	n.wantUnpoliced()
}

// Where no other plugin may make interfaces, claims without an endpoint are reported, also if another pod has the address.
func TestCheckAttached(t *testing.T) {
	n := newNode(t)
	own, twice, other := pod("own", 2, "10.0.0.1", "fd00::1"), pod("twice", 1, "10.0.0.1"), pod("other", 1, "fd00::9")
	n.attached = []adoption.Attached{{ID: "c:eth0", Pod: own.PodID, UID: own.UID, IPs: own.IPs}}
	adding := false
	check := func(pods ...*model.Pod) {
		s := model.MakeSnapshot(nil, nil, pods, nil)
		n.claims.Take(n.old, s, n.now)
		n.old = s
		n.claims.CheckAttached(n.attached, func(p model.PodID) bool { return adding && p == other.PodID })
	}
	check(own, twice, other)
	n.wantUnpoliced("s/other: Isthmus did not give it the address fd00::9", "s/twice: Isthmus did not give it the address 10.0.0.1")
	if all := n.claims.Unpoliced(n.now); len(all) > 0 {
		t.Errorf("a pod is reported when it appears: %v", all)
	}
	adding = true
	check(own, other)
	n.wantUnpoliced()
	adding = false
	n.attached = nil
	n.claims.Ended(adoption.Attached{Pod: own.PodID, UID: own.UID, IPs: own.IPs})
	check(own, other)
	n.wantUnpoliced("s/other")
}

// Endpoints of ADDs stay as they are, and a removed one is not adopted.
func TestBesideAdd(t *testing.T) {
	n := newNode(t)
	n.attached = []adoption.Attached{{ID: "c:eth0", Pod: model.PodID{Namespace: "s", Name: "a"}, UID: "uid-a", IPs: addrs("10.0.0.1")}}
	n.faces = []dataplane.Interface{face("1", "10.0.0.1")}
	n.faces[0].Owner = "c:eth0"
	a := pod("a", 1, "10.0.0.1")
	n.want(n.compare(a), "")
	n.drop("c:eth0")
	n.claims.Ended(adoption.Attached{Pod: a.PodID, UID: a.UID, IPs: a.IPs})
	n.faces[0].Owner, n.faces[0].Closed = "", true
	n.want(n.compare(a), "")
	n.wantUnpoliced()
	n.faces = []dataplane.Interface{{Handle: "9", Name: "p", Addresses: addrs("10.0.0.5"), Problem: "interface p is a port of ovs"}}
	n.want(n.compare(pod("b", 1, "10.0.0.5")), "")
	n.wantUnpoliced("s/b: interface p is a port of ovs")
}
