// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"strings"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/model"
)

// workloadOf derives the workload of a pod from the labels that the controllers of Kubernetes set; nil if they
// name none.
func workloadOf(p *model.Pod) *flow.Workload {
	label := func(key string) string {
		v, _ := p.Labels.Get(key)
		return v
	}
	parent := func(name string) string { return name[:max(0, strings.LastIndexByte(name, '-'))] }
	// A StatefulSet's pods have a revision too, so it comes before DaemonSets.
	switch {
	case label("statefulset.kubernetes.io/pod-name") == p.Name && parent(p.Name) != "":
		return &flow.Workload{Name: parent(p.Name), Kind: "StatefulSet"}
	case label("pod-template-hash") != "":
		if name, ok := strings.CutSuffix(parent(p.Name), "-"+label("pod-template-hash")); ok && name != "" {
			return &flow.Workload{Name: name, Kind: "Deployment"}
		}
	case label("batch.kubernetes.io/job-name") != "":
		return &flow.Workload{Name: label("batch.kubernetes.io/job-name"), Kind: "Job"}
	case label("controller-revision-hash") != "" && label("pod-template-generation") != "" && parent(p.Name) != "":
		return &flow.Workload{Name: parent(p.Name), Kind: "DaemonSet"}
	}
	return nil
}
