// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/trace"
)

func TestReasons(t *testing.T) {
	egress := trace.Step{What: "egress policy", Where: "t/client", Intended: "allow", Installed: "allow"}
	path := trace.Step{What: "path", Where: "n1", Text: "to node n2, by VXLAN", Wrong: []string{"fabric: no route to 10.244.2.0/24"}}
	ingress := func(intended, installed string) trace.Step {
		return trace.Step{What: "ingress policy", Where: "t/server", Intended: intended, Installed: installed, Cause: "NetworkPolicy t/deny", By: "row 3", Changes: []string{"NetworkPolicy t/deny: add it"}}
	}
	report := func(intended, installed string, in trace.Step) *trace.Report {
		return &trace.Report{Node: "n1, n2", Intended: intended, Installed: installed, Steps: []trace.Step{egress, path, in}}
	}
	drift := trace.Step{What: "attachment", Where: "t/server", Text: "policy NOT enforced", Drift: true, Wrong: []string{"attach it"}}
	for _, c := range []struct {
		name   string
		r      *trace.Report
		passed bool
		want   []string
	}{
		{"denied by policy", report("deny", "deny", ingress("deny", "deny")), false,
			[]string{"ingress policy, t/server: denied: NetworkPolicy t/deny", "an edit that allows it: NetworkPolicy t/deny: add it"}},
		{"denied by drift", report("allow", "deny", ingress("allow", "deny")), false,
			[]string{"ingress policy, t/server: DRIFT: policy intends allow, and the data path holds deny (row 3)"}},
		{"lost", report("allow", "allow", ingress("allow", "allow")), false,
			[]string{"no policy denies it (intended allow, installed allow on node n1, n2): the packets are lost on the path", "path, n1: to node n2, by VXLAN", "fabric: no route to 10.244.2.0/24"}},
		{"not enforced", report("deny", "allow", ingress("deny", "allow")), true,
			[]string{"ingress policy, t/server: DRIFT: policy intends deny, and the data path holds allow (row 3)"}},
		{"not attached", report("deny", "unknown", drift), true, []string{"attachment, t/server: DRIFT: policy NOT enforced", "attach it"}},
		{"another path", report("deny", "deny", ingress("deny", "deny")), true,
			[]string{"the policies deny it, and the data path of node n1, n2 holds that: the packets take a path that Isthmus does not see", "path, n1: to node n2, by VXLAN", "fabric: no route to 10.244.2.0/24"}},
		{"unknown policy", report("allow", "allow", ingress("allow", "allow")), true,
			[]string{"no policy that node n1, n2 knows denies it", "path, n1: to node n2, by VXLAN", "fabric: no route to 10.244.2.0/24"}},
	} {
		if got := c.r.Reasons(c.passed); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q\nwant %q", c.name, got, c.want)
		}
	}
}
