// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

func pod(name string, finished bool, ips ...string) *model.Pod {
	p := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Finished: finished}
	for _, ip := range ips {
		p.IPs = append(p.IPs, netip.MustParseAddr(ip))
	}
	return p
}

// A pod that has finished is no end of a flow: its address may be that of another pod.
func TestInUse(t *testing.T) {
	s := model.MakeSnapshot(nil, nil, []*model.Pod{pod("web", false, "10.0.0.2"), pod("job", true, "10.0.0.2")}, nil)
	const gone = "pod shop/job has finished: it opens and gets no connections, and another pod may have its address"
	for text, want := range map[string]string{"shop/web": "[10.0.0.2] <nil>", "shop/job": "[] " + gone, "shop/job@10.0.0.2": "[] " + gone, "10.0.0.2": "[10.0.0.2] <nil>"} {
		if got := fmt.Sprint(InUse(s, text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A flow has a counterpart of the other family where both ends have addresses of it and the protocol exists there.
func TestOtherFamily(t *testing.T) {
	s := model.MakeSnapshot(nil, nil, []*model.Pod{pod("web", false, "10.0.0.2", "fd00::2"), pod("db", false, "10.0.0.3", "fd00::3"), pod("old", false, "10.0.0.4")}, nil)
	four, six := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	for _, c := range []struct {
		from, to string
		src      netip.Addr
		protocol model.Protocol
		want     string
	}{
		{"shop/web", "shop/db", four, model.TCP, "fd00::2 fd00::3 true"},
		{"shop/web", "shop/db", six, model.TCP, "10.0.0.2 10.0.0.3 true"},
		{"shop/web", "shop/db@10.0.0.3", four, model.TCP, "false"},
		{"shop/web", "shop/old", four, model.TCP, "false"},
		{"shop/web", "shop/db", four, model.ICMP, "false"},
	} {
		f, ok := OtherFamily(s, c.from, c.to, model.Flow{Src: c.src, Protocol: c.protocol})
		got := fmt.Sprint(ok)
		if ok {
			got = fmt.Sprint(f.Src, " ", f.Dst, " ", ok)
		}
		if got != c.want {
			t.Errorf("%s -> %s %s from %s: %s, want %s", c.from, c.to, c.protocol, c.src, got, c.want)
		}
	}
}
