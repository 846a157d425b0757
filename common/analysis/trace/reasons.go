// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Reasons says why a flow that was tried ended otherwise than expected. passed is true if it was answered, but should have
// been blocked. Each reason is one line.
func (r *Report) Reasons(passed bool) (lines []string) {
	deny := model.Deny.String()
	for i := range r.Steps {
		s := &r.Steps[i]
		at := fmt.Sprintf("%s, %s", s.What, s.Where)
		switch {
		case !passed && s.Intended == deny:
			lines = append(lines, fmt.Sprintf("%s: denied: %s", at, s.Cause))
			for _, c := range s.Changes {
				lines = append(lines, "an edit that allows it: "+c)
			}
		case s.Intended != "" && s.Installed != unknown && s.Installed != s.Intended:
			lines = append(lines, fmt.Sprintf("%s: DRIFT: policy intends %s, and the data path holds %s%s", at, s.Intended, s.Installed, by(s)))
		case s.Drift:
			lines = append(lines, at+": DRIFT: "+s.Text)
		default:
			continue
		}
		lines = append(lines, s.Wrong...)
	}
	if len(lines) > 0 {
		return lines
	}
	switch {
	case passed && r.Intended == deny && r.Installed == deny:
		lines = append(lines, fmt.Sprintf("the policies deny it, and the data path of node %s holds that: the packets take a path that Isthmus does not see", r.Node))
	case passed && r.Intended == deny:
		lines = append(lines, fmt.Sprintf("the policies deny it; what the data path of node %s holds is %s", r.Node, r.Installed))
	case passed:
		lines = append(lines, fmt.Sprintf("no policy that node %s knows denies it", r.Node))
	default:
		lines = append(lines, fmt.Sprintf("no policy denies it (intended %s, installed %s on node %s): the packets are lost on the path", r.Intended, r.Installed, r.Node))
	}
	for _, s := range r.Steps {
		if s.Text != "" {
			lines = append(lines, fmt.Sprintf("%s, %s: %s", s.What, s.Where, s.Text))
		} else if len(s.Wrong) > 0 {
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s, %s", s.What, s.Where), ", ")+":")
		}
		lines = append(lines, s.Wrong...)
	}
	return lines
}

func by(s *Step) string {
	if s.By == "" {
		return ""
	}
	return " (" + s.By + ")"
}
