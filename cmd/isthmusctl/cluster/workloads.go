// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/model"
)

// workloadKinds are the kinds of workloads, by the names that kubectl accepts, in the singular.
var workloadKinds = map[string]struct{ kind, group string }{
	"deploy": {"Deployment", "apps"}, "deployment": {"Deployment", "apps"}, "rs": {"ReplicaSet", "apps"}, "replicaset": {"ReplicaSet", "apps"},
	"sts": {"StatefulSet", "apps"}, "statefulset": {"StatefulSet", "apps"}, "ds": {"DaemonSet", "apps"}, "daemonset": {"DaemonSet", "apps"},
	"job": {"Job", "batch"}, "cj": {"CronJob", "batch"}, "cronjob": {"CronJob", "batch"},
	"rc": {"ReplicationController", ""}, "replicationcontroller": {"ReplicationController", ""}, "po": {"Pod", ""}, "pod": {"Pod", ""},
}

// workloadKind returns the kind of a text such as deploy, deployments, deployment.apps (as kubectl get -o name prints it) or
// deployments.v1.apps; "" for another text.
func workloadKind(text string) string {
	name, group, _ := strings.Cut(strings.ToLower(text), ".")
	k, ok := workloadKinds[name]
	if one := strings.TrimSuffix(name, "s"); !ok {
		if k = workloadKinds[one]; !strings.EqualFold(k.kind, one) {
			return "" // abbreviations have no plural
		}
	}
	if group = strings.TrimPrefix(group, "v1."); group != "" && group != k.group {
		return ""
	}
	return k.kind
}

// Pod turns KIND/NAME or KIND/NAMESPACE/NAME into the name of a pod: pod/web, or the first pod of a workload,
// deploy/web. It returns other texts unchanged. The note names the pod that represents a workload. other is the pod at the
// other end, which does not represent a workload that has more pods.
func (s *Source) Pod(snapshot *model.Snapshot, text, namespace, other string) (pod, note string, err error) {
	short, rest, ok := strings.Cut(text, "/")
	kind := workloadKind(short)
	if !ok || kind == "" || rest == "" {
		return text, "", nil
	}
	if _, exists := snapshot.Pods.Get(model.PodID{Namespace: short, Name: rest}); exists {
		return text, "", nil // a namespace of that name has such a pod
	}
	if space, name, full := strings.Cut(rest, "/"); full {
		namespace, rest = space, name
	}
	if namespace == "" {
		return "", "", cli.Usagef("%q: give %s/NAMESPACE/%s, or the namespace with --namespace", text, short, rest)
	}
	if kind == "Pod" {
		return namespace + "/" + rest, "", nil
	}
	want := model.WorkloadID{Kind: kind, Namespace: namespace, Name: rest}
	var found []*model.Pod
	known := make(map[string]bool)
	without := ""
	for _, p := range snapshot.Pods.All() {
		w, ok := s.Workloads[p.PodID]
		if !ok {
			w, ok = p.Workload()
		}
		switch {
		case ok && w == want && p.Policed():
			found = append(found, p)
		case ok && w == want && p.HostNetwork:
			without = fmt.Sprintf("its pods are on the host network, where no policy applies to them: name a node, such as node:%s", p.Node)
		case ok && w == want:
			without = "its pods have finished"
		case ok && w.Kind == kind && w.Namespace == namespace:
			known[w.Name] = true
		}
	}
	if len(found) == 0 && without != "" {
		return "", "", fmt.Errorf("%s: %s", want, without)
	}
	if len(found) == 0 {
		names := make([]string, 0, len(known))
		for name := range known {
			names = append(names, name)
		}
		slices.Sort(names)
		return "", "", fmt.Errorf("no pods of %s: %s", want, hint(snapshot, namespace, kind, names))
	}
	slices.SortFunc(found, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
	first := found[0]
	if len(found) > 1 && first.PodID.String() == other {
		first = found[1]
	}
	if len(found) == 1 {
		return first.PodID.String(), fmt.Sprintf("%s: its only pod is %s", want, first.PodID), nil
	}
	note = fmt.Sprintf("%s: pod %s stands for %d pods", want, first.PodID, len(found))
	if slices.ContainsFunc(found, func(p *model.Pod) bool { return bare(p) != bare(first) }) {
		note += "; their labels differ, so ask about the others too"
	}
	return first.PodID.String(), note, nil
}

func hint(s *model.Snapshot, namespace, kind string, names []string) string {
	if none := ends.WithoutPods(s, namespace); none != "" {
		return none
	}
	if len(names) == 0 {
		return fmt.Sprintf("namespace %s has no pods of a %s", namespace, kind)
	}
	return fmt.Sprintf("namespace %s has %s", namespace, cli.Shorten(names, 5))
}

// bare are the labels of a pod without those that controllers add.
func bare(p *model.Pod) string {
	all := make(map[string]string)
	for k, v := range p.Labels.All() {
		if !slices.Contains(model.ControllerLabels(), k) {
			all[k] = v
		}
	}
	return model.MakeLabels(all).String()
}
