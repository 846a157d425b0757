// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
)

// Cluster is what the pages are about, at one moment. It is immutable.
type Cluster struct {
	Snapshot *model.Snapshot
	// Services are those of the cluster, as far as they are known.
	Services []*model.Service
	// Places are where files define policies, by "Kind namespace/name"; nil without files.
	Places map[string]model.Place
	// Workloads name the workload of pods whose labels do not.
	Workloads map[model.PodID]model.WorkloadID
	// Source says in a few words where the cluster was read, and At when.
	Source string
	At     time.Time
	// Remarks say what was assumed or left out.
	Remarks []string
	// Stale says why nothing newer is known; empty if this is the newest.
	Stale string
}

// Agent is what the agent of a node reports.
type Agent struct {
	// Error says why there is no report; all other fields are then empty.
	Error             string
	Ready             bool
	Version, Platform string
	// OS is empty if it is not reported.
	OS model.OS
	// Endpoints counts the pods that the agent has attached.
	Endpoints int
	// Modes are those of the parts of its data path, with the number of pods, uplinks or ranges that have them.
	Modes    []string
	Problems []string
	// Repairs are the drifts that audits found and repaired.
	Repairs []string
}

// Config connects the pages with what they show. Cluster must be set.
type Config struct {
	// Base precedes the path of each page, such as "/8f3a". It begins with a slash, or is empty.
	Base string
	// Hosts are the accepted hosts in the Host header, without port. Empty means every host.
	Hosts []string
	// Cluster returns the newest known cluster. It does not wait.
	Cluster func() *Cluster
	// Agents returns the reports of agents by the name of the node. An error that Failed made is that of the page. A nil function
	// means that there are none.
	Agents func(context.Context) (map[string]Agent, error)
	// Usage returns how often the policies of a namespace decided, and what nodes do not enforce exactly of them, as far as the
	// client of a request may see it. An empty namespace stands for all policies. A nil function means that this is not known.
	Usage func(ctx context.Context, namespace string) (*usage.Total, error)
	// AllowNamespace returns an error unless the client of a request may read the policies of a namespace; if it is empty, those of
	// all, and of the cluster. Failed makes the error. A nil function allows all.
	AllowNamespace func(ctx context.Context, namespace string) error
	// Flows sends the denied flows that a query selects, with the rights of the client of a request, until send fails or the context
	// ends. It accepts a client by the first call of send, and bounds the calls at a time. Failed makes its errors. A nil function
	// means that there are none.
	Flows func(ctx context.Context, q FlowQuery, send func(FlowEvent) error) error
	// FlowsOf says whose flows these are; empty for those of all nodes.
	FlowsOf string
	// Enforced returns what the data paths of the ends decide about a flow; it may be nil.
	Enforced func(*model.Snapshot, model.Flow) explain.Enforced
	// Inexact lists the constructs that platforms do not enforce exactly, for all clients alike. It may take long. Without it, the page
	// lists what Usage says of the nodes.
	Inexact func(context.Context, *Cluster) ([]lint.Construct, error)
	// Links replace those to all pages, in the order of the navigation.
	Links []Link
	// Notes returns remarks for the pages about reachability and explanations; it may be nil.
	Notes func(context.Context) []string
	// Allow returns an error unless the client of a request may read the explanation of a flow between two ends, as
	// ends.Addresses reads them. Failed makes the error. A nil function allows all.
	Allow func(ctx context.Context, s *model.Snapshot, from, to string) error
	// Explain explains a flow, with the rights of the client of a request. A nil function explains by the objects alone.
	Explain func(context.Context, *Cluster, model.Flow) (*explain.Report, error)
}

// Link is an entry of the navigation: a path below Base, and its name.
type Link struct{ Path, Name string }
