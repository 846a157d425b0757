// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// TestServiceCIDRsAreCompiled checks that the ranges of all objects reach the State, and stay while
// nodes are added.
func TestServiceCIDRsAreCompiled(t *testing.T) {
	object := func(name string, prefixes ...string) *model.ServiceCIDR {
		c := &model.ServiceCIDR{Name: name}
		for _, p := range prefixes {
			c.Prefixes = append(c.Prefixes, netip.MustParsePrefix(p))
		}
		return c
	}
	ranges := immutable.MakeMap(map[string]*model.ServiceCIDR{
		"b": object("b", "10.200.0.0/16", "fd96::/112"), "a": object("a", "10.96.0.0/12"), "c": object("c", "10.96.0.0/12"), "d": object("d")})
	cluster := func(ranges immutable.Map[string, *model.ServiceCIDR], nodes ...string) Input {
		var all []*model.Node
		for _, n := range nodes {
			all = append(all, &model.Node{Name: n, OS: model.Windows})
		}
		s := model.MakeSnapshot(nil, all, nil, nil)
		s.ServiceCIDRs = ranges
		return Input{Snapshot: s, Node: "n"}
	}
	c := New()
	const want = "[10.96.0.0/12 10.200.0.0/16 fd96::/112]"
	s, _ := c.Compile(cluster(ranges, "n"))
	if got := fmt.Sprint(s.Fabric.ServiceCIDRs); got != want {
		t.Errorf("got %s", got)
	}
	s, _ = c.Compile(cluster(ranges, "n", "o"))
	if got := fmt.Sprint(s.Fabric.ServiceCIDRs); got != want || len(s.Fabric.Routes) != 1 {
		t.Errorf("after a node came: %s, %v", got, s.Fabric.Routes)
	}
	s, _ = c.Compile(cluster(immutable.Map[string, *model.ServiceCIDR]{}, "n", "o"))
	if len(s.Fabric.ServiceCIDRs) > 0 || len(s.Fabric.Routes) != 1 {
		t.Errorf("without objects: %+v", s.Fabric)
	}
}
