// SPDX-License-Identifier: Apache-2.0

package doctor

import "context"

// checkAdmission reports whether the agent's credentials allow more than the agent needs.
// Without credentials it has no findings.
func (c Config) checkAdmission(ctx context.Context) []Finding {
	const check = "credentials"
	const why = "an attacker on this node can change labels, annotations, addresses and conditions of every Node, and so redirect traffic of other nodes"
	if c.Confined == nil {
		return nil
	}
	confined, err := c.Confined(ctx)
	switch {
	case err != nil:
		return []Finding{{check, Unknown, err.Error(), "without admission policies " + why, "run kubectl get validatingadmissionpolicies"}}
	case !confined:
		return []Finding{{check, Warning, "the API server lets the agent change labels of a Node", why,
			"install the ValidatingAdmissionPolicies of the chart (admissionPolicy=true) or of deploy/isthmus.yaml, and check that the API server has not disabled them"}}
	}
	return []Finding{{Check: check, Severity: Good, What: "the API server lets the agent change only the required fields of Nodes"}}
}
