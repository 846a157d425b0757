// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestSendsWithoutPatience opens flows that await no answer: their packets are sent nevertheless. A busy machine may stop a
// client for longer than its patience before it sends. TCP is not among them: the server does not accept a connection that
// its client gives up during the handshake.
func TestSendsWithoutPatience(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	ns, servers := netns.ForTest(t), ServersFor(t)
	at := netip.MustParseAddrPort("127.0.0.1:7000")
	protocols := []model.Protocol{model.UDP, model.SCTP}
	if err := servers.Echo(ns, at, protocols...); err != nil {
		t.Fatal(err)
	}
	for _, p := range protocols {
		const flows = 50
		f := Flow{NS: ns, From: at.Addr(), To: at, Protocol: p}
		for range flows {
			if err := f.Try(context.Background(), time.Nanosecond); err != nil && !Silent(err) {
				t.Fatalf("%s: %v", p, err)
			}
		}
		for deadline := time.Now().Add(sending); servers.Arrived(at, p) < flows; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d flows have arrived by %s", servers.Arrived(at, p), flows, p)
			}
		}
	}
}
