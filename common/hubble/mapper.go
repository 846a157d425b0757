// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// Emitter is the name of the emitter of all flows.
const Emitter = "Isthmus"

// Mapper makes messages of flow events. It is not safe for concurrent use.
type Mapper struct {
	// node, emitter and prefix never change: a Kept reads them. prefix makes the UUIDs of this start differ from those of
	// other nodes and other starts.
	node    string
	emitter *flow.Emitter
	prefix  uint64
	count   uint64 // of flows so far

	latest func() *model.Snapshot
	// reasons and labels belong to the snapshot known. endpoints stay: kept flows share an Endpoint while its pod is the same.
	known     *model.Snapshot
	snapshots uint64 // so far
	endpoints map[model.PodID]*endpoint
	reasons   map[*model.Cause]*reason
	labels    []string
}

// endpoint is the description of a pod.
type endpoint struct {
	message *flow.Endpoint
	labels  model.Labels // all that the message depends on besides the pod's name
	at      uint64       // the value of Mapper.snapshots when labels were compared last
}

// reason holds what messages say about a cause. Those of one cause share it.
type reason struct {
	summary string
	log     []string
	policy  []*flow.Policy // nil if no policy decided
}

// NewMapper returns a Mapper for a node. It labels pods by the snapshot that latest returns, which may be nil.
func NewMapper(node, version string, start time.Time, latest func() *model.Snapshot) *Mapper {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", node, start.UnixNano()))
	return &Mapper{node: node, emitter: &flow.Emitter{Name: Emitter, Version: version}, prefix: binary.BigEndian.Uint64(sum[:]), latest: latest}
}

// Map returns the message of a flow. The message shares parts with others: it must not be changed.
func (m *Mapper) Map(f *observe.Flow) *flow.Flow { return m.Keep(f).Message() }

// Keep numbers a flow, and returns it with what is known about its ends and its cause now. Its message is made later, and only
// if a client wants it.
func (m *Mapper) Keep(f *observe.Flow) *Kept {
	m.refresh()
	m.count++
	return &Kept{flow: f, mapper: m, number: m.count, labels: m.labels, local: m.pod(f.Pod), remote: m.remote(f), reason: m.reason(f)}
}

// refresh follows the newest snapshot.
func (m *Mapper) refresh() {
	s := m.latest()
	if s == m.known && m.endpoints != nil {
		return
	}
	if m.endpoints == nil {
		m.endpoints = make(map[model.PodID]*endpoint)
	}
	if len(m.endpoints) == maxEndpoints { // forget the pods without a flow since the snapshot before
		maps.DeleteFunc(m.endpoints, func(_ model.PodID, e *endpoint) bool { return e.at != m.snapshots })
	}
	m.snapshots++
	m.known, m.reasons, m.labels = s, make(map[*model.Cause]*reason), nil
	if s == nil {
		return
	}
	if n, ok := s.Nodes.Get(m.node); ok {
		for k, v := range n.Labels.All() {
			m.labels = append(m.labels, k+"="+v)
		}
	}
}

// notKnown is the reason of a verdict without a cause.
var notKnown = &reason{summary: rulesNotKnown, log: []string{rulesNotKnown}}

const rulesNotKnown = "the rules of that time are not known"

// reason returns why a packet had its outcome.
func (m *Mapper) reason(f *observe.Flow) *reason {
	c := f.Cause
	switch {
	case c == nil && f.Drop == model.NotDropped:
		return notKnown
	case c == nil:
		return &reason{summary: f.Drop.String(), log: []string{f.Drop.String()}}
	}
	r := m.reasons[c]
	if r == nil {
		r = &reason{summary: c.String(), policy: policyOf(c)}
		r.log = []string{r.summary}
		if len(m.reasons) == maxReasons {
			clear(m.reasons)
		}
		m.reasons[c] = r
	}
	return r
}

// maxReasons bounds the causes that a Mapper remembers.
const maxReasons = 1024

// policyOf describes the policy that decided, as a list of one; nil if none did.
func policyOf(c *model.Cause) []*flow.Policy {
	if c.Reason != model.ReasonRule && c.Reason != model.ReasonIsolated {
		return nil
	}
	p := &flow.Policy{Name: c.Origin.Name, Namespace: c.Origin.Namespace, Kind: c.Origin.Kind}
	if c.Reason == model.ReasonRule {
		p.Labels = []string{"isthmus.dev/tier=" + c.Tier.String(), fmt.Sprintf("isthmus.dev/rule=%d", c.Rule)}
		if c.RuleName != "" {
			p.Labels = append(p.Labels, "isthmus.dev/rule-name="+c.RuleName)
		}
	}
	return []*flow.Policy{p}
}

// remote describes the remote end of a flow.
func (m *Mapper) remote(f *observe.Flow) *flow.Endpoint {
	switch {
	case f.Peer != (model.PodID{}):
		return m.pod(f.Peer)
	case f.PeerNode == m.node && f.PeerNode != "":
		return reservedHost
	case f.PeerNode != "":
		return reservedRemoteNode
	case f.Remote() != netip.Addr{}:
		return reservedWorld
	}
	return reservedUnknown
}

// pod describes a pod.
func (m *Mapper) pod(id model.PodID) *flow.Endpoint {
	if id == (model.PodID{}) {
		return reservedUnknown
	}
	known := m.endpoints[id]
	if known != nil && known.at == m.snapshots {
		return known.message
	}
	p := &model.Pod{PodID: id}
	if m.known != nil {
		if q, ok := m.known.Pods.Get(id); ok {
			p = q
		}
	}
	if known != nil && known.labels == p.Labels {
		known.at = m.snapshots
		return known.message
	}
	e := &flow.Endpoint{Namespace: id.Namespace, PodName: id.Name, ClusterName: Cluster, Labels: labelsOf(p)}
	name, kind := id.Name, "Pod"
	if w := workloadOf(p); w != nil {
		e.Workloads = []*flow.Workload{w}
		name, kind = w.Name, w.Kind
	}
	e.Identity = identity(id.Namespace, kind, name)
	if known != nil || len(m.endpoints) < maxEndpoints {
		m.endpoints[id] = &endpoint{message: e, labels: p.Labels, at: m.snapshots}
	}
	return e
}

const (
	// maxLabels bounds the labels of a pod that messages have, maxLabelBytes the bytes of their keys and values. A pod of
	// Kubernetes can have labels of 250 KiB, and each message has those of two pods.
	maxLabels, maxLabelBytes = 64, 8 << 10
	// labelsCut follows the labels of a pod that has more. No label of Kubernetes has this prefix.
	labelsCut = "isthmus:labels-cut"
)

// labelsOf returns the label of a pod's namespace, and the pod's labels in order of their keys, up to the bounds.
func labelsOf(p *model.Pod) []string {
	list, size := []string{"k8s:io.kubernetes.pod.namespace=" + p.Namespace}, 0
	for k, v := range p.Labels.All() {
		if size += len(k) + len(v); len(list) > maxLabels || size > maxLabelBytes {
			return append(list, labelsCut)
		}
		list = append(list, "k8s:"+k+"="+v)
	}
	return list
}

// maxEndpoints bounds the pods that a Mapper remembers.
const maxEndpoints = 4096

// identity returns the number of a workload. It is the same on all nodes, and above the numbers that Hubble
// reserves.
func identity(words ...string) uint32 {
	sum := sha256.Sum256([]byte(strings.Join(words, "/")))
	return 1<<24 | binary.BigEndian.Uint32(sum[:])>>8
}

// Cluster is the name of the cluster in all messages.
const Cluster = "default"

// The ends that are not pods, with the numbers and labels that Hubble reserves.
var (
	reservedUnknown    = &flow.Endpoint{Labels: []string{"reserved:unknown"}}
	reservedHost       = &flow.Endpoint{Identity: 1, ClusterName: Cluster, Labels: []string{"reserved:host"}}
	reservedWorld      = &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
	reservedRemoteNode = &flow.Endpoint{Identity: 6, ClusterName: Cluster, Labels: []string{"reserved:remote-node"}}
)
