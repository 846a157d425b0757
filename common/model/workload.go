// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"strings"
)

// WorkloadID names the object whose controller creates pods. Pods of a Deployment belong to
// the Deployment, not to its ReplicaSet.
type WorkloadID struct{ Kind, Namespace, Name string }

// String returns "Kind namespace/name".
func (w WorkloadID) String() string { return fmt.Sprintf("%s %s/%s", w.Kind, w.Namespace, w.Name) }

// Labels that controllers of Kubernetes add to pods.
const (
	labelTemplateHash = "pod-template-hash"
	labelRevision     = "controller-revision-hash"
	labelSetPod       = "statefulset.kubernetes.io/pod-name"
	labelJob          = "batch.kubernetes.io/job-name"
)

// ControllerLabels are the labels that controllers add to pods and that templates do not have.
func ControllerLabels() []string {
	return []string{labelTemplateHash, labelRevision, labelSetPod, labelJob, "apps.kubernetes.io/pod-index", "pod-template-generation",
		"job-name", "controller-uid", "batch.kubernetes.io/controller-uid"}
}

// Workload derives the workload of a pod from its name and the labels that controllers add. A pod that nothing
// but its labels ties to a workload may claim a wrong one.
func (p *Pod) Workload() (WorkloadID, bool) {
	if hash, ok := p.Labels.Get(labelTemplateHash); ok {
		if name, found := cutSuffixes(p.Name, "-"+hash); found {
			return WorkloadID{"Deployment", p.Namespace, name}, true
		}
		return WorkloadID{}, false
	}
	if job, ok := p.Labels.Get(labelJob); ok && strings.HasPrefix(p.Name, job+"-") {
		return WorkloadID{"Job", p.Namespace, job}, true
	}
	last := strings.LastIndexByte(p.Name, '-')
	if last <= 0 {
		return WorkloadID{}, false
	}
	if name, ok := p.Labels.Get(labelSetPod); ok && name == p.Name {
		return WorkloadID{"StatefulSet", p.Namespace, p.Name[:last]}, true
	}
	if _, ok := p.Labels.Get(labelRevision); ok {
		return WorkloadID{"DaemonSet", p.Namespace, p.Name[:last]}, true
	}
	return WorkloadID{}, false
}

// cutSuffixes removes the suffix and the random characters behind it: "web-5d9c-x7k2p" without "-5d9c" is "web".
func cutSuffixes(name, suffix string) (string, bool) {
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return "", false
	}
	before, ok := strings.CutSuffix(name[:at], suffix)
	return before, ok && before != ""
}
