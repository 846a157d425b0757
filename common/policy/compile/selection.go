// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// selection finds the policies of every endpoint. It evaluates subjects once per namespace
// and set of labels.
type selection struct {
	subjects  map[subjectKey]*subject
	digests   map[*model.Policy]digest
	compiled  map[digest]*compiledPolicy
	profiles  map[model.TableID]*profile
	sides     map[sideKey]*sideBuilder
	endpoints map[model.EndpointID]*attachment
	byPod     map[model.PodID][]model.EndpointID
	// bySubject are all policies by the namespace of their subject; "" for those that select
	// namespaces by labels.
	bySubject map[string]map[*model.Policy]bool
}

type subjectKey struct {
	namespace string
	labels    model.Labels
}

// subject is a set of endpoints whose pods no policy subject can distinguish.
type subject struct {
	subjectKey
	policies  []*model.Policy // in order of evaluation
	endpoints map[model.EndpointID]bool
}

// attachment is an endpoint with its subject and profile.
type attachment struct {
	Endpoint
	subject *subject // nil if policies do not select the pod
	profile *profile
}

// profile determines a Table: the policies that select a pod, and the meaning of the port
// names of its ingress rules on it.
type profile struct {
	id        model.TableID
	endpoints int
	pending   bool
	policies  []*compiledPolicy // in order of evaluation
	// names are the named ports of the pod that ingress rules use.
	names []model.NamedPort
	sides [2]*sideBuilder
	table *model.Table
}

func newSelection() *selection {
	return &selection{
		subjects: make(map[subjectKey]*subject), digests: make(map[*model.Policy]digest),
		compiled: make(map[digest]*compiledPolicy), profiles: make(map[model.TableID]*profile),
		sides:     make(map[sideKey]*sideBuilder),
		endpoints: make(map[model.EndpointID]*attachment), byPod: make(map[model.PodID][]model.EndpointID),
		bySubject: make(map[string]map[*model.Policy]bool),
	}
}

// policyChanged removes a policy from the subjects that it selected and adds its successor
// to those that it selects; either may be nil.
func (s *selection) policyChanged(was, is *model.Policy, cluster *model.Snapshot, dirty map[model.EndpointID]bool) {
	delete(s.digests, was)
	s.index(was, is)
	for _, subject := range s.subjects {
		i := slices.Index(subject.policies, was)
		if i >= 0 {
			subject.policies = slices.Delete(slices.Clone(subject.policies), i, i+1)
		}
		selects := is != nil && is.Subject.MatchesNamespace(cluster.Namespace(subject.namespace)) && is.Subject.Pods.Matches(subject.labels)
		if selects {
			at, _ := slices.BinarySearchFunc(subject.policies, is, model.ComparePolicies)
			subject.policies = slices.Insert(slices.Clone(subject.policies), at, is)
		}
		if i >= 0 || selects {
			maps.Copy(dirty, subject.endpoints)
		}
	}
}

// namespaceChanged evaluates the selection again for the pods of a namespace.
func (s *selection) namespaceChanged(name string, cluster *model.Snapshot, dirty map[model.EndpointID]bool) {
	for _, subject := range s.subjects {
		if subject.namespace == name {
			subject.policies = s.selecting(cluster, subject.subjectKey)
			maps.Copy(dirty, subject.endpoints)
		}
	}
}

// index maintains bySubject.
func (s *selection) index(was, is *model.Policy) {
	if was != nil {
		all := s.bySubject[was.Subject.Namespace]
		if delete(all, was); len(all) == 0 {
			delete(s.bySubject, was.Subject.Namespace)
		}
	}
	if is != nil {
		all := s.bySubject[is.Subject.Namespace]
		if all == nil {
			all = make(map[*model.Policy]bool)
			s.bySubject[is.Subject.Namespace] = all
		}
		all[is] = true
	}
}

func (s *selection) selecting(cluster *model.Snapshot, key subjectKey) []*model.Policy {
	ns := cluster.Namespace(key.namespace)
	var found []*model.Policy
	for _, all := range []map[*model.Policy]bool{s.bySubject[""], s.bySubject[key.namespace]} {
		for p := range all {
			if p.Subject.MatchesNamespace(ns) && p.Subject.Pods.Matches(key.labels) {
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, model.ComparePolicies)
	return found
}

// changedEndpoints lists the endpoints that changed.
func (s *selection) changedEndpoints(now map[model.EndpointID]Endpoint) []model.EndpointID {
	var changed []model.EndpointID
	known := 0
	for id, e := range now {
		was, ok := s.endpoints[id]
		if ok {
			known++
		}
		if !ok || was.Pod != e.Pod || !slices.Equal(was.IPs, e.IPs) || !slices.Equal(was.Further, e.Further) {
			changed = append(changed, id)
		}
	}
	if known == len(s.endpoints) {
		return changed
	}
	for id := range s.endpoints {
		if _, ok := now[id]; !ok {
			changed = append(changed, id)
		}
	}
	return changed
}

// changeEndpoints records the current endpoints. It keeps the removed ones until selectAgain
// has released their profiles.
func (s *selection) changeEndpoints(changed []model.EndpointID, now map[model.EndpointID]Endpoint) {
	for _, id := range changed {
		e, ok := s.endpoints[id]
		if ok {
			s.removeFromPod(e.Pod, id)
		} else {
			e = &attachment{}
			s.endpoints[id] = e
		}
		if is, ok := now[id]; ok {
			e.Endpoint = Endpoint{Pod: is.Pod, IPs: slices.Clone(is.IPs), Further: slices.Clone(is.Further)}
			s.byPod[is.Pod] = append(s.byPod[is.Pod], id)
		}
	}
}

func (s *selection) removeFromPod(pod model.PodID, id model.EndpointID) {
	s.byPod[pod] = slices.DeleteFunc(s.byPod[pod], func(e model.EndpointID) bool { return e == id })
	if len(s.byPod[pod]) == 0 {
		delete(s.byPod, pod)
	}
}

// selectAgain finds the profiles of endpoints that may have changed, and enters and drops
// policies in the vocabulary.
func (s *selection) selectAgain(dirty map[model.EndpointID]bool, now map[model.EndpointID]Endpoint, cluster *model.Snapshot, v *vocabulary) {
	wanted := make(map[model.TableID]*profile)
	next := make(map[model.EndpointID]*profile)
	for id := range dirty {
		e := s.endpoints[id]
		if _, ok := now[id]; ok {
			next[id] = s.profileOf(id, e, cluster)
			wanted[next[id].id] = next[id]
		} else {
			s.leave(id, e)
		}
	}
	// Enter new policies in a fixed order, and before dropping any: words that both have in
	// common stay unchanged.
	for _, id := range slices.SortedFunc(maps.Keys(wanted), compareTables) {
		if s.profiles[id] == nil {
			s.profiles[id] = s.enter(wanted[id], v)
		}
	}
	var left []*profile
	for id := range dirty {
		e := s.endpoints[id]
		if e.profile != nil {
			e.profile.endpoints--
			left = append(left, e.profile)
		}
		if p := next[id]; p != nil {
			e.profile = s.profiles[p.id]
			e.profile.endpoints++
		} else {
			delete(s.endpoints, id)
		}
	}
	slices.SortFunc(left, func(a, b *profile) int { return compareTables(a.id, b.id) })
	for _, p := range left {
		if p.endpoints == 0 && s.profiles[p.id] == p {
			s.remove(p, v)
		}
	}
}

func compareTables(a, b model.TableID) int { return slices.Compare(a[:], b[:]) }

// profileOf returns the profile of an endpoint. Its policies are not compiled yet.
func (s *selection) profileOf(id model.EndpointID, e *attachment, cluster *model.Snapshot) *profile {
	p := &profile{}
	var key subjectKey
	pod, ok := cluster.Pods.Get(e.Pod)
	switch {
	case !ok:
		p.pending = true
	case pod.Policed():
		key = subjectKey{pod.Namespace, pod.Labels}
	}
	if e.subject == nil || e.subject.subjectKey != key {
		s.leave(id, e)
		if key != (subjectKey{}) {
			s.join(id, e, key, cluster)
		}
	}
	if e.subject != nil {
		for _, policy := range e.subject.policies {
			p.policies = append(p.policies, &compiledPolicy{Policy: policy, digest: s.digest(policy)})
		}
		p.names = ingressNames(p.policies, pod)
	}
	p.id = p.identity()
	return p
}

func (s *selection) join(id model.EndpointID, e *attachment, key subjectKey, cluster *model.Snapshot) {
	e.subject = s.subjects[key]
	if e.subject == nil {
		e.subject = &subject{subjectKey: key, policies: s.selecting(cluster, key), endpoints: make(map[model.EndpointID]bool)}
		s.subjects[key] = e.subject
	}
	e.subject.endpoints[id] = true
}

func (s *selection) leave(id model.EndpointID, e *attachment) {
	if e.subject == nil {
		return
	}
	delete(e.subject.endpoints, id)
	if len(e.subject.endpoints) == 0 {
		delete(s.subjects, e.subject.subjectKey)
	}
	e.subject = nil
}

func (s *selection) digest(p *model.Policy) digest {
	d, ok := s.digests[p]
	if !ok {
		d = digestPolicy(p)
		s.digests[p] = d
	}
	return d
}

// enter compiles the policies of a profile, or shares them with other profiles.
func (s *selection) enter(p *profile, v *vocabulary) *profile {
	for i, policy := range p.policies {
		c, ok := s.compiled[policy.digest]
		if !ok {
			c = v.compilePolicy(policy.Policy, policy.digest)
			s.compiled[policy.digest] = c
		}
		c.profiles++
		p.policies[i] = c
	}
	v.usePorts(p.names, 1)
	for _, d := range model.Directions {
		key := p.sideKey(d)
		b := s.sides[key]
		if b == nil {
			b = newSide(p, d)
			s.sides[key] = b
		}
		b.profiles++
		p.sides[d] = b
	}
	return p
}

// remove drops a profile without endpoints.
func (s *selection) remove(p *profile, v *vocabulary) {
	delete(s.profiles, p.id)
	for _, d := range model.Directions {
		if p.sides[d].profiles--; p.sides[d].profiles == 0 {
			delete(s.sides, p.sideKey(d))
		}
	}
	v.usePorts(p.names, -1)
	for _, c := range p.policies {
		if c.profiles--; c.profiles == 0 {
			delete(s.compiled, c.digest)
			v.dropPolicy(c)
		}
	}
}

// ingressNames lists the pod's named ports that ingress rules of the policies refer to,
// without repetition.
func ingressNames(policies []*compiledPolicy, pod *model.Pod) []model.NamedPort {
	var names []model.NamedPort
	for _, p := range policies {
		for _, r := range p.Rules[model.Ingress] {
			for _, m := range r.Ports {
				if m.Name != "" {
					names = append(names, pod.Resolve(m.Name, m.Protocol)...)
				}
			}
		}
	}
	return sortedPorts(names)
}

// identity identifies the profile by the full text of its rules.
func (p *profile) identity() model.TableID {
	h := sha256.New()
	fmt.Fprintf(h, "pending=%t\n", p.pending)
	for _, c := range p.policies {
		h.Write(c.digest[:])
	}
	writePorts(h, p.names)
	return model.TableID(h.Sum(nil)[:len(model.TableID{})])
}

func writePorts(w io.Writer, ports []model.NamedPort) {
	for _, n := range ports {
		fmt.Fprintf(w, "%q %d %d\n", n.Name, n.Protocol, n.Port)
	}
}

// isolating returns the first NetworkPolicy that isolates for the direction.
func (p *profile) isolating(d model.Direction) *compiledPolicy {
	for _, c := range p.policies {
		if c.Isolates[d] {
			return c
		}
	}
	return nil
}

// addressesOf returns the addresses that the endpoints of a pod really have, or those in the
// API if there are no endpoints. A pod with several attachments has the addresses of all.
func (s *selection) addressesOf(pod *model.Pod) []netip.Addr {
	switch {
	case pod == nil:
		return nil
	case pod.HostNetwork:
		return pod.IPs
	}
	var found []netip.Addr
	for _, id := range s.byPod[pod.PodID] {
		found = append(append(found, s.endpoints[id].IPs...), s.endpoints[id].Further...)
	}
	if len(found) == 0 {
		return pod.IPs
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found)
}
