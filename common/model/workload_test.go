// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// The names and labels are those that controllers of Kubernetes 1.36 give.
func TestWorkload(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"web-5d9c-x7k2p": {map[string]string{"pod-template-hash": "5d9c"}, "Deployment shop/web"},
		"a-b-5d9c-x7k2p": {map[string]string{"pod-template-hash": "5d9c"}, "Deployment shop/a-b"},
		"web-5d9c":       {map[string]string{"pod-template-hash": "5d9c"}, ""},
		"-5d9c-x7k2p":    {map[string]string{"pod-template-hash": "5d9c"}, ""},
		"other":          {map[string]string{"pod-template-hash": "5d9c"}, ""},
		"db-0":           {map[string]string{"statefulset.kubernetes.io/pod-name": "db-0", "controller-revision-hash": "db-7c"}, "StatefulSet shop/db"},
		"db-1":           {map[string]string{"statefulset.kubernetes.io/pod-name": "db-0"}, ""},
		"proxy-x7k2p":    {map[string]string{"controller-revision-hash": "7c", "pod-template-generation": "1"}, "DaemonSet shop/proxy"},
		"load-x7k2p":     {map[string]string{"batch.kubernetes.io/job-name": "load"}, "Job shop/load"},
		"load":           {map[string]string{"batch.kubernetes.io/job-name": "load"}, ""},
		"single":         {map[string]string{"controller-revision-hash": "7c"}, ""},
		"plain-0":        {nil, ""},
	} {
		p := model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Labels: model.MakeLabels(c.labels)}
		w, ok := p.Workload()
		if ok != (c.want != "") || ok && w.String() != c.want {
			t.Errorf("%s %v: workload %v, %t, want %q", name, c.labels, w, ok, c.want)
		}
	}
}
