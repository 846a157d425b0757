// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/model"
)

// Report is the outcome of a test. Its JSON form is an interface of isthmusctl.
type Report struct {
	Namespace string       `json:"namespace"`
	Nodes     []NodeReport `json:"nodes"`
	Pods      []PodReport  `json:"pods"`
	Flows     []*Result    `json:"flows"`
	Passed    int          `json:"passed"`
	Failed    int          `json:"failed"`
}

// NodeReport is a node that took part.
type NodeReport struct {
	Name string   `json:"name"`
	OS   model.OS `json:"os"`
}

// PodReport is a pod of the test.
type PodReport struct {
	Name      string       `json:"name"`
	Node      string       `json:"node"`
	Addresses []netip.Addr `json:"addresses"`
	// Missing says why the pod did not run in time, and so took no part.
	Missing string `json:"missing,omitempty"`
}

// Result is a flow with its outcome.
type Result struct {
	Flow Flow `json:"-"`

	Phase    string `json:"phase"`
	Kind     string `json:"kind"`
	From     string `json:"from"`
	FromNode string `json:"from_node"`
	To       string `json:"to,omitempty"`
	ToNode   string `json:"to_node"`
	Target   string `json:"target"`
	// Expected is answered or blocked.
	Expected string `json:"expected"`
	Passed   bool   `json:"passed"`
	// Attempts counts attempts: changes of policy need a moment.
	Attempts int `json:"attempts"`
	// Wrong says what differs from what is expected, and Why where the flow ends as far as the nodes know.
	Wrong string   `json:"wrong,omitempty"`
	Why   []string `json:"why,omitempty"`

	// Answer is the end of the last attempt.
	Answer probe.Answer `json:"answer"`
}

// Positive reports whether all pods ran and all flows ended as expected.
func (r *Report) Positive() bool {
	for _, p := range r.Pods {
		if p.Missing != "" {
			return false
		}
	}
	return r.Failed == 0 && r.Passed > 0
}

// Running counts the pods that took part.
func (r *Report) Running() (n int) {
	for _, p := range r.Pods {
		if p.Missing == "" {
			n++
		}
	}
	return n
}

func newResult(f *Flow) *Result {
	r := &Result{Flow: *f, Phase: f.Phase, Kind: f.Kind, From: f.From.Name, FromNode: f.From.Node.Name, To: f.To.Name, ToNode: f.To.Node.Name,
		Target: f.Target.String(), Expected: string(probe.Answered)}
	if f.Blocked {
		r.Expected = "blocked"
	}
	return r
}
