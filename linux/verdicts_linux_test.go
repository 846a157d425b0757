// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// verdictLab compares the verdicts of pods with those of the node until a pod was deleted, with which
// its verdicts go.
type verdictLab struct {
	*lab
	deleted bool
}

// verdicts returns those of each pod. A pod sends on its own, too, so it reads until their sum is
// that of the node.
func (l *verdictLab) verdicts() map[string][2][2]uint64 {
	l.t.Helper()
	var pods map[string][2][2]uint64
	var node [2][2]uint64
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		pods = make(map[string][2][2]uint64)
		var sum [2][2]uint64
		l.must(l.node.Do(func() error {
			all, err := l.backend.Endpoints(context.Background())
			if err != nil {
				return err
			}
			for _, e := range all {
				if e.Verdicts == nil {
					l.t.Fatalf("no verdicts of %s", e.ID)
				}
				for name := range l.pods {
					if e.ID == model.MakeEndpointID(name, "eth0") {
						pods[name] = *e.Verdicts
					}
				}
				for d := range sum {
					for v := range sum[d] {
						sum[d][v] += e.Verdicts[d][v]
					}
				}
			}
			c, err := l.backend.Counters(context.Background())
			node = c.Verdicts
			return err
		}))
		if sum == node || l.deleted {
			return pods
		}
	}
	l.t.Fatalf("the verdicts of the pods, %v, are not those of the node, %v", pods, node)
	return nil
}

// ingress waits until a pod has counted these verdicts since earlier ones.
func (l *verdictLab) ingress(pod string, was map[string][2][2]uint64, denied, allowed uint64) {
	l.t.Helper()
	want := [2]uint64{model.Deny: was[pod][model.Ingress][model.Deny] + denied, model.Allow: was[pod][model.Ingress][model.Allow] + allowed}
	var got [2]uint64
	for end := time.Now().Add(patience); time.Now().Before(end) && got != want; time.Sleep(10 * time.Millisecond) {
		now := l.verdicts()
		got = now[pod][model.Ingress]
	}
	if got != want {
		l.t.Errorf("pod %s counted ingress %v (denied, allowed), want %v", pod, got, want)
	}
}

// The verdicts on new flows are counted for each pod, exactly: on the fast path, through the host
// stack and after DNAT, across changes of policy and restarts. The next pod starts at 0.
func TestVerdictsOfEndpoints(t *testing.T) {
	t.Parallel()
	l := &verdictLab{lab: newServiceLab(t)}
	a, both := l.pods["a"], []model.PortMatch{udp(8080), udp(7001)}
	policy := func(ports ...model.PortMatch) {
		l.apply(isolate("b", model.Ingress, accept(pods("a"), ports...)), isolate("a", model.Egress, accept(pods("b"), both...)))
	}
	policy(udp(8080))
	was := l.verdicts()
	for _, to := range []string{"10.1.0.12", "fd01::c"} {
		l.sends(a, 7, net.JoinHostPort(to, "8080"))
		l.sends(a, 5, net.JoinHostPort(to, "7001"))
		l.sends(l.outside, 3, net.JoinHostPort(to, "8080"))
	}
	l.ingress("b", was, 16, 14)
	// a's egress to b was allowed each time, and a Service leads to b, too.
	now := l.verdicts()
	if got := now["a"][model.Egress][model.Allow] - was["a"][model.Egress][model.Allow]; got != 24 {
		t.Errorf("pod a counted %d allowed egress flows, want 24", got)
	}
	l.sends(a, 4, net.JoinHostPort(service4, "80"))
	l.sends(a, 4, net.JoinHostPort(service6, "80"))
	l.ingress("b", was, 16, 22)
	after := l.verdicts()
	if got := after["a"][model.Egress][model.Allow] - now["a"][model.Egress][model.Allow]; got != 8 {
		t.Errorf("pod a counted %d allowed egress flows to the Service, want 8", got)
	}
	// Port 81 of the Service leads outside, where a may not go.
	l.sends(a, 6, net.JoinHostPort(service4, "81"))
	l.sends(a, 6, net.JoinHostPort(service6, "81"))
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		denied := l.verdicts()
		if denied["a"][model.Egress][model.Deny] >= after["a"][model.Egress][model.Deny]+12 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("pod a counted %v after 12 denied flows to a Service, from %v on", denied["a"], after["a"])
		}
	}
	policy(both...)
	l.sends(a, 2, "10.1.0.12:7001")
	l.ingress("b", was, 16, 24)
	l.again()
	l.state = nil
	for name, n := range map[string]byte{"a": 11, "b": 12} {
		l.must(l.add(name, n))
	}
	policy(both...)
	l.ingress("b", was, 16, 24)
	l.delete("b")
	l.deleted = true
	l.must(l.add("b", 12))
	policy(both...)
	was["b"] = [2][2]uint64{}
	l.ingress("b", was, 0, 0)
	l.sends(a, 2, "10.1.0.12:7001")
	l.ingress("b", was, 0, 2)
}
