// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// Format is the version of the files of a Bundle. A reader refuses a greater one.
const Format = 1

// Bundle is one node at a moment.
type Bundle struct {
	About     About
	Cluster   Cluster
	Endpoints []Endpoint
	// Installed is what was read back from the data path. It is nil if that failed; About.Notes says why.
	Installed *Installed
	// Drift lists what an audit found different from the intended state at that moment.
	Drift []Drift
	// Counts are the new flows by cause. They are nil if the data path does not count them, or in bundles of
	// earlier versions.
	Counts *Counts
	// Files are further files by name, which people read: events, metrics, checks of the node.
	Files map[string][]byte
}

// About identifies the node and the agent of a Bundle.
type About struct {
	Format   int
	Node     string
	Version  string
	OS       model.OS
	Platform string
	Created  time.Time
	Ready    bool
	// Applied is the time of the last State in force.
	Applied time.Time
	// Pending is true if the newest objects are not in force yet.
	Pending     bool
	Problems    []string
	Unsupported []model.Unsupported
	// Facts and Modes describe the data path.
	Facts, Modes []string
	// Repairs are the last changes by other processes, one per entry, each with its time.
	Repairs []string
	// Settings are the options of the agent that differ from their defaults.
	Settings []string
	// Notes list what is missing in the Bundle, and why.
	Notes []string
}

// ModeText describes the mode of a part of the data path, and how many pods, uplinks or ranges have it.
func ModeText(part, mode string, count int) string {
	return fmt.Sprintf("%s: %s (%d)", part, mode, count)
}

// Cluster holds the objects of the cluster, each list in the order of names.
type Cluster struct {
	Namespaces []*model.Namespace
	Nodes      []*model.Node
	Pods       []*model.Pod
	Policies   []*model.Policy
	DenyLists  []*model.DenyList
	// ServiceCIDRs are missing in archives of older agents.
	ServiceCIDRs []*model.ServiceCIDR `json:",omitempty"`
}

// MakeCluster lists the objects of a snapshot.
func MakeCluster(s *model.Snapshot) Cluster {
	var o model.Objects
	for _, x := range s.Namespaces.All() {
		o.Namespaces = append(o.Namespaces, x)
	}
	for _, x := range s.Nodes.All() {
		o.Nodes = append(o.Nodes, x)
	}
	for _, x := range s.Pods.All() {
		o.Pods = append(o.Pods, x)
	}
	for _, x := range s.Policies.All() {
		o.Policies = append(o.Policies, x)
	}
	for _, x := range s.DenyLists.All() {
		o.DenyLists = append(o.DenyLists, x)
	}
	for _, x := range s.ServiceCIDRs.All() {
		o.ServiceCIDRs = append(o.ServiceCIDRs, x)
	}
	o.Sort()
	return Cluster{o.Namespaces, o.Nodes, o.Pods, o.Policies, o.DenyLists, o.ServiceCIDRs}
}

// Objects returns the objects as lists.
func (c Cluster) Objects() model.Objects {
	return model.Objects{Namespaces: slices.Clone(c.Namespaces), Nodes: slices.Clone(c.Nodes), Pods: slices.Clone(c.Pods),
		Policies: slices.Clone(c.Policies), DenyLists: slices.Clone(c.DenyLists), ServiceCIDRs: slices.Clone(c.ServiceCIDRs)}
}

// Snapshot returns the cluster of the Bundle. The node has all addresses that its rules use, and its pods have the further ones of
// their endpoints.
func (b *Bundle) Snapshot() *model.Snapshot {
	o := b.Cluster.Objects()
	if b.Installed != nil {
		for i, n := range o.Nodes {
			if n.Name != b.About.Node {
				continue
			}
			own := *n
			own.Addresses = slices.Clone(n.Addresses)
			for _, a := range b.Installed.NodeAddresses {
				if !slices.Contains(own.Addresses, a) {
					own.Addresses = append(own.Addresses, a)
				}
			}
			o.Nodes[i] = &own
		}
	}
	further := make(map[model.PodID][]netip.Addr)
	for _, e := range b.Endpoints {
		further[e.Pod] = e.Further
	}
	for i, p := range o.Pods {
		if more := further[p.PodID]; len(more) > 0 {
			own := *p
			own.IPs = slices.Concat(p.IPs, more)
			o.Pods[i] = &own
		}
	}
	return o.Snapshot()
}

// Endpoint is an attachment.
type Endpoint struct {
	ID        model.EndpointID
	Pod       model.PodID
	Addresses []netip.Addr
	// Further are those of Addresses that another CNI plugin gave the pod besides the ones that the API shows.
	Further       []netip.Addr `json:",omitempty"`
	HostInterface string
	// Table is the identity of the table in force; empty while default deny is in force.
	Table string
	// Policies are those that select the pod, in order of evaluation.
	Policies   []model.Origin
	Problems   []string
	Unenforced bool
	// Verdicts counts the decisions on new flows since the attachment, by Direction and Verdict; nil if not
	// counted by pod.
	Verdicts *[2][2]uint64 `json:",omitempty"`
}

// Counts are numbers of new flows, or of packets, by the cause of their verdict.
type Counts struct {
	// Packets is true if packets are counted, and numbers are lower bounds.
	Packets bool `json:",omitempty"`
	Causes  []Count
	// Others counts flows whose cause is not counted separately, by Direction and Verdict. Shared are such
	// causes, for which there was no room.
	Others [2][2]uint64
	Shared []model.Decision `json:",omitempty"`
	// Past counts flows of rules that are gone or say something else now.
	Past [2][2]uint64
}

// Count is the number of new flows that a cause has decided.
type Count struct {
	model.Decision
	Flows uint64
}

// Drift is a difference between installed and intended state.
type Drift struct {
	Object   string
	Endpoint model.EndpointID
	Detail   string
}

// Installed is what the data path of a node decides, as it was read back: State on Linux, Lists on Windows.
type Installed struct {
	// State has no causes and no terms.
	State *model.State
	// Lists are the ACLs of HNS, as an acl.Ruleset.
	Lists json.RawMessage
	// NodeAddresses are the node's addresses besides those of its Node object, as rules use them.
	NodeAddresses []netip.Addr
}
