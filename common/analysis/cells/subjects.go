// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// subject is an endpoint that stands for all endpoints that no side can distinguish from it.
type subject struct {
	id    model.EndpointID
	state model.EndpointState
	pod   *model.Pod
	table *model.Table // nil: denies everything
	// reference decides each direction; nil if it is omitted or the pod is unknown.
	reference [2]*policy.PodEvaluator
	slot      uint32
	// reported, by Lists: the lists report that they deny more than the State.
	reported []bool
}

// subjectKey is everything that the sides read of an endpoint, besides its own address.
type subjectKey struct {
	// policies are those that select the pod; ports are its named ports, if a rule names
	// one.
	policies, ports string
	known           bool
	table           model.TableID
	// number is the table of the endpoint's slot; lists are the numbers of its lists, which
	// endpoints may share.
	number uint32
	lists  string
}

// findSubjects groups the endpoints. An endpoint that a side does not have is a problem.
func (c *comparison) findSubjects() {
	seen := make(map[subjectKey]bool)
	tables := make(map[model.TableID]bool)
	numbers := make(map[*model.Policy]uint32)
	for _, id := range slices.Sorted(maps.Keys(c.node.State.Policy.Endpoints)) {
		e := c.node.State.Policy.Endpoints[id]
		s := subject{id: id, state: e, table: c.node.State.Policy.Tables[e.Table]}
		tables[e.Table] = true
		key := subjectKey{table: e.Table}
		if s.pod, key.known = c.node.Snapshot.Pods.Get(e.Pod); key.known && c.reference != nil {
			s.reference[model.Ingress] = c.reference.evaluator.Pod(s.pod, model.Ingress)
			s.reference[model.Egress] = s.reference[model.Ingress].Toward(model.Egress)
			key.policies, key.ports = s.seen(numbers)
		}
		if c.node.Maps != nil {
			slot, ok := c.node.Maps.Slot(id)
			if !ok {
				c.problem("endpoint %s has no slot in the maps", id)
				continue
			}
			s.slot = slot
			number, got, ok := c.node.Maps.Table(slot)
			if key.number = number; !ok || got != e.Table {
				c.problem("endpoint %s: slot %d has table %d, which is %s in the map tables and should be %s", id, slot, number, got, e.Table)
			}
		}
		for _, l := range c.node.Lists {
			number, ok := l.List(id)
			if !ok {
				c.problem("endpoint %s has no ACLs for %s: everything would pass", id, l.Title())
			}
			key.lists += fmt.Sprint(number, " ")
		}
		c.result.Endpoints++
		if !seen[key] {
			seen[key] = true
			c.subjects = append(c.subjects, s)
			c.addRules(&s)
		}
	}
	c.result.Tables, c.result.Subjects = len(tables), len(c.subjects)
}

// addRules records the rules that the reference evaluates for a subject.
func (c *comparison) addRules(s *subject) {
	for _, r := range s.reference {
		if r == nil {
			continue
		}
		for _, rule := range r.Rules() {
			if _, ok := c.place[rule]; !ok {
				c.place[rule] = len(c.rules)
				c.rules = append(c.rules, rule)
			}
		}
	}
}

// seen returns texts of everything that the reference reads of the subject's pod, besides
// its addresses and its node. These are the policies that select it, and its named ports if
// an ingress rule names one of them.
func (s *subject) seen(numbers map[*model.Policy]uint32) (policies, ports string) {
	var key []byte
	ingress := s.reference[model.Ingress]
	for _, p := range ingress.Policies() {
		n, ok := numbers[p]
		if !ok {
			n = uint32(len(numbers))
			numbers[p] = n
		}
		key = binary.LittleEndian.AppendUint32(key, n)
	}
	key = append(key, s.pod.Node...)
	if slices.ContainsFunc(ingress.Rules(), namesPorts) {
		ports = fmt.Sprint(s.pod.Ports)
	}
	return string(key), ports
}

// namesPorts reports whether a rule has a port by name.
func namesPorts(r *model.Rule) bool {
	return slices.ContainsFunc(r.Ports, func(m model.PortMatch) bool { return m.Name != "" })
}

// checkMaps reads the maps back as a starting agent does.
func (c *comparison) checkMaps() {
	if c.node.Maps == nil {
		return
	}
	for _, p := range c.node.Maps.Problems() {
		c.problem("maps: %s", p)
	}
}

// portPoint is a protocol and a port that stand for all ports that no side can distinguish
// from them.
type portPoint struct {
	protocol model.Protocol
	port     uint16
}

func comparePorts(a, b portPoint) int {
	return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port))
}
