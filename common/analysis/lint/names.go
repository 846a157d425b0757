// SPDX-License-Identifier: Apache-2.0

package lint

// Checks describes all checks, by name.
func Checks() map[string]string {
	return map[string]string{
		"bad-document":         "a document that the API server would refuse, or that cannot mean what it says",
		"document":             "a document that was read with a remark: unknown fields, names used twice",
		"enforceability":       "a construct that a platform does not enforce exactly",
		"selects-no-pod":       "the selector of the policy matches no pod, or contradicts itself",
		"unknown-namespace":    "no Namespace object and no pod has the namespace of the policy",
		"enforcement":          "the annotation isthmus.dev/enforcement of a namespace has a value that means nothing",
		"ignored-rules":        "rules of a direction that policyTypes leaves out",
		"unresolved-port":      "a port name that no destination has",
		"repeated-rule":        "a rule of the same policy matches all of it already",
		"block-of-pods":        "an ipBlock has addresses of pods",
		"equal-priority":       "cluster-wide policies of one tier and priority could decide a connection differently",
		"hidden-clients":       "a Service may hide the address of clients outside the cluster",
		"service-address":      "an ipBlock has an address of a Service, which policy never sees",
		"peer-matches-nothing": "a selector of peers matches no pod",
		"every-address":        "from or to is missing or empty: every address",
	}
}
