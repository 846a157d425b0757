// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// A pod that has finished is no end of a flow: its address may be that of another pod.
func TestEnds(t *testing.T) {
	pod := func(name string, finished bool) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Finished: finished, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
	}
	s := model.MakeSnapshot(nil, nil, []*model.Pod{pod("web", false), pod("job", true)}, nil)
	const gone = "pod shop/job has finished: it opens and gets no connections, and another pod may have its address"
	for text, want := range map[string]string{"shop/web": "[10.0.0.2] <nil>", "shop/job": "[] " + gone, "shop/job@10.0.0.2": "[] " + gone, "10.0.0.2": "[10.0.0.2] <nil>"} {
		if got := fmt.Sprint(Ends(s, text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
