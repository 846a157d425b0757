// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// A Windows node writes its announcement with no more than the role for it. It
// writes it again when another client removes it, and writes nothing if it exists.
func TestAnnounce(t *testing.T) {
	s := running(t)
	apply(t, s, reportWorld)
	bin := commands(t)
	kubeconfig := account(t, s, "herald", "isthmus-agent")
	node := startWindows(t, bin, kubeconfig, "--hns-mode", "overlay", "--management-ip", "192.168.0.77", "--management-mac", "00-15-5D-00-00-09")
	node.until(t, "refusal", func() bool { return node.metric(t, `isthmus_announce_requests_total{result="error"}`) > 0 })
	account(t, s, "herald", "isthmus-agent-announce")
	want := map[string]string{"isthmus.dev/fabric": "vxlan", "isthmus.dev/vtep-mac": "00:15:5d:00:00:09", "isthmus.dev/vtep-address": "192.168.0.77"}
	s.untilAnnotations(t, want)

	node.stop(t)
	node = startWindows(t, bin, kubeconfig, "--hns-mode", "overlay", "--management-ip", "192.168.0.77", "--management-mac", "00-15-5D-00-00-09")
	time.Sleep(2 * time.Second)
	if n := node.metric(t, `isthmus_announce_requests_total{result="ok"}`); n != 0 {
		t.Errorf("%v writes of what is there", n)
	}

	node.stop(t) // a bridged network from here on: the annotations about tunnels disappear
	startWindows(t, bin, kubeconfig, "--fabric", "routes")
	s.untilAnnotations(t, map[string]string{"isthmus.dev/fabric": "routes"})
}

// untilAnnotations waits until the Node win1 has exactly these annotations of Isthmus.
func (s *Server) untilAnnotations(t *testing.T, want map[string]string) {
	t.Helper()
	var have map[string]string
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		u, err := s.Get(context.Background(), manifestOf("Node win1"))
		if err != nil {
			t.Fatal(err)
		}
		if have = u.GetAnnotations(); fmt.Sprint(have) == fmt.Sprint(want) {
			return
		}
	}
	t.Fatalf("annotations of Node win1 are %v, want %v", have, want)
}
