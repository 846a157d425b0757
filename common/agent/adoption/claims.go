// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// grace is the time without an interface after which a pod is a problem: a pod that ends keeps its
// addresses in the API for a moment.
const grace = 2 * time.Second

// Claims holds the claims of one node's pods. It is not safe for concurrent use.
type Claims struct {
	node string
	// round counts the comparisons. It orders the appearance of claims and interfaces.
	round  uint64
	claims map[model.PodID]*claim
	// appeared are the rounds in which interfaces were first seen, by handle.
	appeared map[string]uint64
	fresh    bool // claims changed since the last comparison
}

// claim is what the API says about one pod.
type claim struct {
	pod   *model.Pod
	since time.Time
	round uint64 // 0 before the first comparison
	// ended says that the pod had an interface, which is gone or was detached.
	ended bool
	// why says why the pod has no policy; "" if it has.
	why string
	// held says that an interface is closed because of the claim.
	held bool
}

// Attached is an endpoint of the agent.
type Attached struct {
	ID  model.EndpointID
	Pod model.PodID
	// UID may be empty.
	UID string
	IPs []netip.Addr
	// Handle names the interface of an adopted endpoint; "" for an endpoint that an ADD made.
	Handle string
}

// Match is a pod with its interface.
type Match struct {
	Pod       *model.Pod
	Interface dataplane.Interface
	// Since is when the network of the pod was ready, as far as the API says, and never later than when its addresses
	// became known.
	Since time.Time
}

// Closing is an interface that must not carry packets because of an outdated claim.
type Closing struct {
	Interface dataplane.Interface
	// Pod is that of the claim, which Claim identifies.
	Pod   model.PodID
	Claim string
}

// Result is what the agent must do after a comparison.
type Result struct {
	// Gone are adopted endpoints whose interface does not exist any more.
	Gone []model.EndpointID
	// Close are interfaces to close before anything else.
	Close []Closing
	// Adopt are pods to attach.
	Adopt []Match
}

// Unpoliced is a pod without policy.
type Unpoliced struct {
	Pod model.PodID
	Why string
}

// New returns Claims for the pods of a node.
func New(node string) *Claims {
	return &Claims{node: node, claims: make(map[model.PodID]*claim), appeared: make(map[string]uint64)}
}

// Take reads the claims of a snapshot. old is the snapshot of the call before, or nil.
func (cs *Claims) Take(old, s *model.Snapshot, now time.Time) {
	if old == nil {
		for id := range s.Pods.All() {
			cs.take(id, s, now)
		}
		return
	}
	for id := range s.Pods.Changes(old.Pods) {
		cs.take(id, s, now)
	}
}

func (cs *Claims) take(id model.PodID, s *model.Snapshot, now time.Time) {
	pod, ok := s.Pods.Get(id)
	was := cs.claims[id]
	if !ok || pod.Node != cs.node || !pod.Policed() || len(pod.IPs) == 0 {
		delete(cs.claims, id)
		cs.fresh = cs.fresh || was != nil
		return
	}
	if was != nil && was.pod.UID == pod.UID && sameAddresses(was.pod.IPs, pod.IPs) {
		was.pod = pod
		return
	}
	cs.claims[id], cs.fresh = &claim{pod: pod, since: now}, true
}

// Due reports whether claims changed since the last comparison.
func (cs *Claims) Due() bool { return cs.fresh }

// Pending returns how many claims have no endpoint, as of the last comparison.
func (cs *Claims) Pending() (n int) {
	for _, c := range cs.claims {
		if c.why != "" {
			n++
		}
	}
	return n
}

// Ended records that the endpoint of a pod was removed. The same claim gets no other interface, and is no pod without policy.
// A claim with other addresses is about a later interface.
func (cs *Claims) Ended(a Attached) {
	if c := cs.claims[a.Pod]; c != nil && a.serves(c) {
		c.ended = true
	}
}

// Failed records why a pod of a Result could not be attached, or its interface not be closed. A later comparison tries again.
func (cs *Claims) Failed(pod model.PodID, why string) {
	if c := cs.claims[pod]; c != nil {
		c.why = why
	}
}

// Unpoliced lists the pods without policy, sorted. A pod that has just appeared, or whose interface is gone,
// is not one.
func (cs *Claims) Unpoliced(now time.Time) (all []Unpoliced) {
	for id, c := range cs.claims {
		if c.why != "" && (c.held || !c.ended && now.Sub(c.since) >= grace) {
			all = append(all, Unpoliced{id, c.why})
		}
	}
	slices.SortFunc(all, func(a, b Unpoliced) int { return a.Pod.Compare(b.Pod) })
	return all
}

// Compare matches the claims with the interfaces of the node. busy reports whether an ADD of a pod is under way,
// observed whether the pods of a namespace are observed.
func (cs *Claims) Compare(attached []Attached, interfaces []dataplane.Interface, busy func(model.PodID) bool, observed func(namespace string) bool) Result {
	cs.fresh = false
	cs.round++
	cs.see(interfaces)
	var r Result
	owners := make(map[model.EndpointID]Attached)
	for _, a := range attached {
		if _, there := cs.appeared[a.Handle]; a.Handle != "" && !there {
			r.Gone = append(r.Gone, a.ID)
			cs.Ended(a)
			continue
		}
		owners[a.ID] = a
	}
	best := cs.winners()
	open := slices.DeleteFunc(cs.unsatisfied(slices.Collect(maps.Values(owners)), busy), func(c *claim) bool {
		return slices.ContainsFunc(c.pod.IPs, func(ip netip.Addr) bool { return best[ip] != c })
	})
	m := matching{claims: cs, observed: observed, candidates: make(map[*claim][]*dataplane.Interface), taken: make(map[string]bool)}
	for _, c := range open {
		for i := range interfaces {
			if face := &interfaces[i]; cs.available(face, c, owners, best) {
				m.candidates[c] = append(m.candidates[c], face)
			}
		}
	}
	m.decide(open, interfaces, &r)
	return r
}

// CheckAttached is Compare where no other plugin may make interfaces: a claim without an endpoint has no policy. Unlike there, the
// younger of two pods with one address does not hide the older, because networks that do not know each other assign it twice.
func (cs *Claims) CheckAttached(attached []Attached, busy func(model.PodID) bool) {
	cs.fresh = false
	for _, c := range cs.unsatisfied(attached, busy) {
		c.why = c.notOurs()
	}
}

// see numbers claims and interfaces in the order of their appearance.
func (cs *Claims) see(interfaces []dataplane.Interface) {
	there := make(map[string]uint64, len(interfaces))
	for _, i := range interfaces {
		if there[i.Handle] = cs.appeared[i.Handle]; there[i.Handle] == 0 {
			there[i.Handle] = cs.round
		}
	}
	cs.appeared = there
	for _, c := range cs.claims {
		if c.round == 0 {
			c.round = cs.round
		}
	}
}

// unsatisfied returns the claims without an endpoint, sorted.
func (cs *Claims) unsatisfied(attached []Attached, busy func(model.PodID) bool) (open []*claim) {
	for id, c := range cs.claims {
		c.why, c.held = "", false
		if busy(id) || slices.ContainsFunc(attached, func(a Attached) bool { return a.Pod == id && a.serves(c) }) {
			c.ended = false
			continue
		}
		open = append(open, c)
	}
	slices.SortFunc(open, func(a, b *claim) int { return a.pod.PodID.Compare(b.pod.PodID) })
	return open
}

// serves reports whether an endpoint of a pod is that of a claim of the same name. The kubelet gives a static pod another UID
// than the API, of 32 digits.
func (a Attached) serves(c *claim) bool {
	same := a.UID == "" || c.pod.UID == "" || a.UID == c.pod.UID || a.Handle == "" && len(a.UID) == 32
	return same && containsAll(a.IPs, c.pod.IPs)
}

// winners returns the claim of each address: that of the younger pod, else the later one, else that of the pod
// whose name sorts last.
func (cs *Claims) winners() map[netip.Addr]*claim {
	best := make(map[netip.Addr]*claim)
	for _, c := range cs.claims {
		for _, ip := range c.pod.IPs {
			if o := best[ip]; o == nil || cmp.Or(cmp.Compare(c.pod.Created, o.pod.Created), cmp.Compare(c.round, o.round), c.pod.PodID.Compare(o.pod.PodID)) > 0 {
				best[ip] = c
			}
		}
	}
	return best
}

// available reports whether an interface may be that of a claim.
func (cs *Claims) available(i *dataplane.Interface, c *claim, owners map[model.EndpointID]Attached, best map[netip.Addr]*claim) bool {
	if !containsAll(i.Addresses, c.pod.IPs) {
		return false
	}
	owner, owned := owners[i.Owner]
	if !owned {
		return true
	}
	if owner.Handle == "" {
		return false // an ADD has named its pod
	}
	// A pod keeps its interface as long as the API says that it has the addresses.
	was := cs.claims[owner.Pod]
	live := was != nil && was.pod.UID == owner.UID && !slices.ContainsFunc(was.pod.IPs, func(ip netip.Addr) bool { return best[ip] != was })
	return was == c || !live
}

// began returns the Since of a Match. The API has seconds, so it is up to a second early.
func (c *claim) began() time.Time {
	if t := time.Unix(c.pod.Started, 0); c.pod.Started > 0 && t.Before(c.since) {
		return t
	}
	return c.since
}

func (c *claim) key() string { return c.pod.PodID.String() + "/" + c.pod.UID }

func containsAll(all, some []netip.Addr) bool {
	return !slices.ContainsFunc(some, func(ip netip.Addr) bool { return !slices.Contains(all, ip) })
}

func sameAddresses(a, b []netip.Addr) bool { return len(a) == len(b) && containsAll(a, b) }

func names(all []*dataplane.Interface) string {
	var text []string
	for _, i := range all {
		text = append(text, i.Name)
	}
	return strings.Join(text, ", ")
}

func join(all []netip.Addr) string {
	var text []string
	for _, a := range all {
		text = append(text, a.String())
	}
	return strings.Join(text, ", ")
}

func (c *claim) missing() string {
	return fmt.Sprintf("no veth pair of this node ends at an interface with the address %s: restart the pod; macvlan, ipvlan and pass-through interfaces are not supported", join(c.pod.IPs))
}

func (c *claim) notOurs() string {
	return fmt.Sprintf("Isthmus did not give it the address %s: it was created before Isthmus, or by another CNI plugin: delete it, so that it is created again", join(c.pod.IPs))
}
