// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestUnfilteredNetworks: Windows does not enforce ACLs on networks of these types, although HNS keeps them. Their pods do not start, and
// those that run are reported, also if an earlier agent has attached them.
func TestUnfilteredNetworks(t *testing.T) {
	for _, kind := range []hns.NetworkType{hnstest.Transparent, hnstest.NAT, hnstest.ICS, hnstest.Private, hnstest.Internal} {
		n := newNode(t, kind)
		want := "azure of type " + string(kind) + ", where Windows does not enforce ACLs"
		s := spec("web", "10.1.0.5", n.fake.AddNamespace())
		id := n.make("web", "10.1.0.5", s.NetNS, acl("deny", hns.In, hns.Block, 1000, ""))
		if kind == hnstest.Transparent {
			n.unpoliced(s)
		}
		if _, err := n.backend.AddEndpoint(ctx, s); !errors.Is(err, dataplane.ErrInterfaceKind) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", kind, err)
		}
		if list, err := n.backend.Interfaces(ctx); err != nil || len(list) != 1 || !strings.Contains(list[0].Problem, want) {
			t.Errorf("%s: interfaces %+v, %v", kind, list, err)
		}
		earlier := map[string]any{"endpoints": map[string]any{string(s.ID): map[string]any{"hns": strings.ToLower(id), "netns": s.NetNS, "pod": s.Pod, "ips": s.IPs}}}
		text, err := json.Marshal(earlier)
		if err == nil {
			err = os.WriteFile(n.file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.start()
		n.wantProblem(string(kind), want)
	}
}

// TestDegradedEndpoint checks that an endpoint that HNS has stopped serving is reported: no policy and no packet is known to pass there.
func TestDegradedEndpoint(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	n.wantProblem("healthy", "")
	for _, of := range []hns.State{hns.StateDegraded, hns.StateDestroyed} {
		if err := n.fake.SetState(n.id("web"), of); err != nil {
			t.Fatal(err)
		}
		n.wantProblem(of.String(), "hns has stopped serving it: its state is "+of.String()+": restart the pod")
	}
	if err := n.fake.SetState(n.id("web"), hns.StateNone); err != nil {
		t.Fatal(err)
	}
	n.wantProblem("healthy again", "")
}
