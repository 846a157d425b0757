// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// TestSeveralAreRemovedAtOnce removes several pods by one call. One of them has a limit, and
// one does not exist.
func TestSeveralAreRemovedAtOnce(t *testing.T) {
	l := newLab(t)
	l.limits = map[string]model.Bandwidth{"b": {Egress: model.Limit{Rate: 10e6, Burst: 1e6}}}
	a, _, c := l.pod("a", 11), l.pod("b", 12), l.pod("c", 13)
	l.apply()
	l.echo(c, 80)
	l.allowed(a, "tcp4", "10.1.0.13", 80)
	leaving := []model.EndpointID{model.MakeEndpointID("b", "eth0"), model.MakeEndpointID("nobody", "eth0"), model.MakeEndpointID("a", "eth0")}
	l.must(l.node.Do(func() error { return errors.Join(l.backend.DeleteEndpoints(context.Background(), leaving)...) }))
	l.must(l.node.Do(func() error {
		found, err := link.List()
		if err == nil && (len(found) != 1 || found[0].ID != model.MakeEndpointID("c", "eth0")) {
			t.Errorf("attached are %v, want c alone", found)
		}
		links, listed := link.Whole(netlink.LinkList)
		for _, l := range links {
			if l.Type() == "ifb" {
				t.Errorf("%s is left", l.Attrs().Name)
			}
		}
		return errors.Join(err, listed)
	}))
	l.must(a.Do(func() error {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("the pod's end is left")
		}
		return nil
	}))
	delete(l.local, leaving[0])
	delete(l.local, leaving[2])
	d := l.pod("d", 14)
	l.apply()
	l.allowed(d, "tcp4", "10.1.0.13", 80)
}
