// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// behindBalancer is startAPI behind a load balancer, which refuses connections while the API server is away.
func behindBalancer(t *testing.T, f *fakeAPI) (*kubetest.Follower, *atomic.Bool) {
	t.Helper()
	var away atomic.Bool
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if away.Load() {
			return nil, syscall.ECONNREFUSED
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	a, err := NewAPIServer(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	return kubetest.Follow(t, a), &away
}

// TestAPIRestored brings back an old state of the API server, as from a backup, with older resource versions. A watch since the known
// version would send nothing for long: a new policy would not be enforced. So everything is read again. test/apiserver
// does the same to a real API server.
func TestAPIRestored(t *testing.T) {
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			f.served[cnpPath], f.streams = true, streams
			f.put(t, world1)
			restore := f.backUp()
			f.put(t, cnpAdmin)
			for range 50 {
				f.put(t, "{apiVersion: v1, kind: Pod, metadata: {name: lost, namespace: shop}}")
			}
			w, away := behindBalancer(t, f)
			w.Until("the lost pod and policy", func(s *model.Snapshot) bool {
				return kubetest.HasPod("lost")(s) && hasPolicy("ClusterNetworkPolicy", "", "guard")(s)
			})
			w.NoProblems()
			away.Store(true)
			f.server.CloseClientConnections()
			for _, kind := range []string{"Pod", "Namespace", "NetworkPolicy", "ClusterNetworkPolicy"} {
				w.Problem("API server", kind)
			}
			restore()
			away.Store(false)
			w.Until("the old state", func(s *model.Snapshot) bool {
				return !kubetest.HasPod("lost")(s) && !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) && kubetest.HasPod("db")(s)
			})
			f.put(t, cnpAdmin)
			w.Until("a new policy", hasPolicy("ClusterNetworkPolicy", "", "guard"))
			w.NoProblems()
		})
	}
}

// TestAPIRestoredBetweenWatches restores the API server while a client opens its next watch. If that is refused, the API server has
// answered before which version it has reached, and the answer counts no more.
func TestAPIRestoredBetweenWatches(t *testing.T) {
	for name, refused := range map[string]bool{"opened": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			f.streams = false
			f.put(t, world1)
			restore := f.backUp()
			w, _ := behindBalancer(t, f)
			w.Until("the first pods", kubetest.HasPod("db"))
			for range 50 { // by the watch: one that sent nothing is followed by a list
				f.put(t, "{apiVersion: v1, kind: Pod, metadata: {name: lost, namespace: shop}}")
			}
			w.Until("the lost pod", kubetest.HasPod("lost"))
			w.NoProblems()
			if refused {
				f.set(func() { f.busy = true })
				f.server.CloseClientConnections()
				w.Problem("API server", "Pod", "try again later")
			}
			restore()
			if !refused {
				f.server.CloseClientConnections()
			}
			f.set(func() { f.busy = false })
			w.Until("the old state", func(s *model.Snapshot) bool { return !kubetest.HasPod("lost")(s) && kubetest.HasPod("db")(s) })
			w.NoProblems()
		})
	}
}
