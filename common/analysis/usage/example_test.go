// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// Two of three nodes report how often the policy shop/api has denied new flows.
func ExampleSum() {
	api := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "api"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{model.Ingress: true}}
	report := func(denied uint64) *usage.Policies {
		isolated := model.Decision{Verdict: model.Deny, Cause: &model.Cause{Reason: model.ReasonIsolated, Origin: api.Origin, Direction: model.Ingress}}
		p := usage.Of(&inspect.Bundle{About: inspect.About{OS: model.Linux}, Cluster: inspect.Cluster{Policies: []*model.Policy{api}},
			Endpoints: []inspect.Endpoint{{Policies: []model.Origin{api.Origin}}}, Counts: &inspect.Counts{Causes: []inspect.Count{{Decision: isolated, Flows: denied}}}})
		return &p
	}
	total := usage.Sum([]usage.Answer{{Node: "n1", OS: model.Linux, Policies: report(40)}, {Node: "n2", OS: model.Linux, Policies: report(2)}, {Node: "n3", OS: model.Linux, Why: "connection refused"}})
	flows := total.Policies["NetworkPolicy shop/api"].Flows
	fmt.Println(flows.Denied, "denied on", flows.Nodes, "nodes; missing:", total.Systems[0].Missing[0].Node)
	// Output:
	// 42 denied on 2 nodes; missing: n3
}
