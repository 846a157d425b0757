// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// TestTryCounts checks that Try finds flows that pass although their client hears nothing: the answers of the server are
// lost, and the reference is made to deny the flows.
func TestTryCounts(t *testing.T) {
	c, pods := startCluster(t, delayManifests, cluster.Config{Linux: 2})
	flows, err := c.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Try(t.Context(), flows, func(int) {}); err != nil {
		t.Fatal(err)
	}
	err = pods["server"].NS.Do(func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader("table inet lost {\nchain out {\ntype filter hook output priority 0;\noifname eth0 meta l4proto { tcp, udp } drop\n}\n}\n")
		out, err := nft.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft: %w: %s", err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []model.Protocol{model.UDP, model.TCP} {
		some := slices.DeleteFunc(slices.Clone(flows), func(f *cluster.Flow) bool {
			return f.From.Pod != pods["client"] || f.To != pods["server"] || f.Protocol != p
		})
		for _, f := range some {
			if f.Want != model.Allow {
				t.Fatalf("%s: want %s", f.Flow, f.Want)
			}
			f.Want, f.Ingress.Verdict = model.Deny, model.Deny
		}
		want := []string{"node linux2 has counted 0 new flows ingress deny, but 2 were sent", "node linux2 has counted 2 new flows ingress allow, but 0 were sent"}
		if p == model.UDP { // a connection whose answer is lost is not accepted
			want = append(want, "has got 1 flows at UDP")
		}
		err := c.Try(t.Context(), some, func(int) {})
		for _, f := range some {
			if f.Got != model.Deny {
				t.Errorf("%s: the client hears something", f.Flow)
			}
		}
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%d flows by %s: %v, want %q", len(some), p, err, text)
			}
		}
	}
}
