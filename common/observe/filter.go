// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Filter selects flows. The zero value selects all.
type Filter struct {
	// Namespace, if set, selects flows with a pod of this namespace at either end. Pod, if set, names the
	// pod in it.
	Namespace, Pod string
	// Outcomes, if not empty, selects flows with one of these outcomes.
	Outcomes []Outcome
}

// ParseFilter builds a Filter from the words of a client. The errors name the word and what is allowed.
func ParseFilter(namespace, pod string, outcomes []string) (Filter, error) {
	f := Filter{Namespace: namespace, Pod: pod}
	if pod != "" && namespace == "" {
		return Filter{}, fmt.Errorf("pod %q: give its namespace too", shorten(pod))
	}
	for _, text := range outcomes {
		o, err := ParseOutcome(text)
		if err != nil {
			return Filter{}, err
		}
		f.Outcomes = append(f.Outcomes, o)
	}
	return f, nil
}

// Matches reports whether the filter selects a flow.
func (f *Filter) Matches(flow *Flow) bool {
	if len(f.Outcomes) > 0 && !slices.Contains(f.Outcomes, flow.Outcome()) {
		return false
	}
	return f.Namespace == "" || f.has(flow.FlowEvent.Pod) || f.has(flow.Peer)
}

func (f *Filter) has(p model.PodID) bool {
	return p.Namespace == f.Namespace && (f.Pod == "" || p.Name == f.Pod)
}
