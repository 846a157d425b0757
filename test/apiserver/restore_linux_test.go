// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestRestoredBackup restores an old backup of etcd while an agent watches. Resource versions go back. An API server sends no changes
// since a later version until its own versions have reached that. So a policy that is created after the restoration
// would not be enforced, and one that no longer exists would be.
func TestRestoredBackup(t *testing.T) {
	if testing.Short() {
		t.Skip("needs kube-apiserver and no -short: make test-api builds it and runs this")
	}
	ctx := context.Background()
	s, err := Start(ctx, Config{}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, s.Close()) })
	kubeconfig := account(t, s, "patient", "isthmus-agent")
	apply(t, s, lair)
	must(t, s.BackUp(ctx))
	apply(t, s, lairPolicy)
	for i := range 200 { // resource versions that the restored cluster does not reach in this test
		must(t, s.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: later, namespace: lair}, data: {n: \"%d\"}}", i)))
	}
	// As behind a load balancer: an API server that is not ready refuses connections.
	var away atomic.Bool
	f := read(t, kubeconfig, func(cfg *watch.APIConfig) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if away.Load() {
				return nil, syscall.ECONNREFUSED
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	})
	f.until("the later policy", func(s *model.Snapshot) bool { return s.Policies.Len() == 1 })
	away.Store(true)
	must(t, s.Restore(ctx))
	away.Store(false)
	f.until("no policy", func(s *model.Snapshot) bool { return s.Policies.Len() == 0 })
	apply(t, s, lairPolicy)
	f.until("the policy", func(s *model.Snapshot) bool { return s.Policies.Len() == 1 })
	f.noProblems()
}
