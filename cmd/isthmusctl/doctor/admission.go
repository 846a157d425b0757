// SPDX-License-Identifier: Apache-2.0

package doctor

import "context"

// checkAdmission reports whether the agent's credentials allow more than the
// agent needs. It finds nothing without credentials.
func (c Config) checkAdmission(ctx context.Context) []Finding {
	const check = "credentials"
	const why = "an attacker on this node can change labels, annotations, addresses and conditions of every Node, and so draw other nodes' traffic"
	if c.Confined == nil {
		return nil
	}
	confined, err := c.Confined(ctx)
	switch {
	case err != nil:
		return []Finding{{check, Unknown, err.Error(), "without admission policies " + why, "look at kubectl get validatingadmissionpolicies"}}
	case !confined:
		return []Finding{{check, Warning, "the API server lets the agent change labels of a Node", why,
			"install the ValidatingAdmissionPolicies of the chart (admissionPolicy=true) or of deploy/isthmus.yaml, and see that the API server has not turned them off"}}
	}
	return []Finding{{Check: check, Severity: Good, What: "the API server lets the agent change nothing of Nodes but what it has to"}}
}
