// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

func TestFlowMessage(t *testing.T) {
	rule := &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Tier: model.TierAdmin, Rule: 2, RuleName: "no-db", Direction: model.Egress}
	isolated := &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "shut"}, Direction: model.Ingress}
	addr, port := netip.MustParseAddr, netip.MustParseAddrPort
	for _, c := range []struct {
		flow observe.Flow
		want *isthmusv1.FlowEvent
	}{
		{observe.Flow{FlowEvent: model.FlowEvent{Time: time.Unix(1, 5), Pod: model.PodID{Namespace: "shop", Name: "web"}, Direction: model.Egress, Verdict: model.Deny,
			Src: addr("10.0.1.1"), Dst: addr("10.0.1.2"), SrcPort: 1000, DstPort: 443, Protocol: model.TCP, Service: port("10.96.0.1:443"), Cause: rule, Table: 3, Epoch: 4, Class: 5},
			Peer: model.PodID{Namespace: "data", Name: "db"}},
			&isthmusv1.FlowEvent{UnixNano: 1e9 + 5, PodNamespace: "shop", PodName: "web", Direction: "egress", Verdict: "deny", Src: "10.0.1.1", Dst: "10.0.1.2",
				SrcPort: 1000, DstPort: 443, Protocol: "TCP", Service: "10.96.0.1:443", Cause: rule.String(), Policy: "ClusterNetworkPolicy guard", Rule: "no-db",
				Tier: model.TierAdmin.String(), PeerNamespace: "data", PeerName: "db", Table: 3, Epoch: 4, PeerClass: 5}},
		{observe.Flow{FlowEvent: model.FlowEvent{Time: time.Unix(2, 0), Drop: model.DropNotIP, Detail: 0x88cc}},
			&isthmusv1.FlowEvent{UnixNano: 2e9, Direction: "ingress", Verdict: "drop", Reason: "not_ip", EtherType: 0x88cc}},
		{observe.Flow{FlowEvent: model.FlowEvent{Time: time.Unix(3, 0), Verdict: model.Allow, Protocol: model.ICMP, Detail: 8, Src: addr("192.0.2.2"), Dst: addr("10.0.1.1"),
			Masquerade: port("192.0.2.9:7")}, PeerNode: "node2"},
			&isthmusv1.FlowEvent{UnixNano: 3e9, Direction: "ingress", Verdict: "allow", Src: "192.0.2.2", Dst: "10.0.1.1", Protocol: "ICMP", IcmpType: 8,
				Masquerade: "192.0.2.9:7", PeerNode: "node2"}},
		{observe.Flow{FlowEvent: model.FlowEvent{Time: time.Unix(4, 0), Verdict: model.Deny, Protocol: model.UDP, Src: addr("fd00::1"), Dst: addr("fd00::2"), Cause: isolated}},
			&isthmusv1.FlowEvent{UnixNano: 4e9, Direction: "ingress", Verdict: "deny", Src: "fd00::1", Dst: "fd00::2", Protocol: "UDP", Cause: isolated.String(),
				Policy: "NetworkPolicy shop/shut"}},
	} {
		if got := flowMessage(&c.flow); !proto.Equal(got, c.want) {
			t.Errorf("got\n%v\nwant\n%v", got, c.want)
		}
	}
}
