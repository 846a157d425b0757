// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/sources"
)

// Maps are the maps of valid sources. A loader.DataPath implements them.
type Maps interface {
	sources.Maps
	SetNodeRoutes(map[netip.Prefix]loader.NodeRoute) error
}

// Pods are the addresses of the attached pods. The host receives what a routed pod sends by the pod's own
// interface, and what a bridged pod sends by the bridge, whose index is the value.
type Pods struct {
	Routed  []netip.Addr
	Bridged map[netip.Addr]int
}

// Sources gives the programs the interface on which the packets of each pod arrive. Pod ranges are those of the
// other CNI plugin, so single addresses have owners.
type Sources struct {
	checks  *sources.Checks
	maps    Maps
	pods    func() Pods
	host    dataplane.Host
	known   bool
	ways    map[netip.Prefix]loader.NodeRoute
	problem string
}

var _ dataplane.Component = (*Sources)(nil)

// NewSources returns the component. pods returns the addresses of the attached pods.
func NewSources(m Maps, pods func() Pods, host dataplane.Host) *Sources {
	routed := func() []netip.Addr { return pods().Routed }
	return &Sources{checks: sources.New(m, routed, func() []fabric.Sender { return nil }, host), maps: m, pods: pods, host: host}
}

// Apply implements dataplane.Component. It never returns an error.
func (s *Sources) Apply(ctx context.Context, _ *model.State) ([]model.Unsupported, error) {
	s.known = true
	s.sync()
	return s.checks.Apply(ctx, &model.State{})
}

// Sync implements dataplane.Component. A failure is a problem, so it returns no error.
func (s *Sources) Sync(ctx context.Context, now time.Time) error {
	if s.known {
		s.sync()
	}
	return s.checks.Sync(ctx, now)
}

// sync writes the bridges of pods, if they changed.
func (s *Sources) sync() {
	want := make(map[netip.Prefix]loader.NodeRoute)
	for ip, bridge := range s.pods().Bridged {
		want[netip.PrefixFrom(ip, ip.BitLen())] = loader.NodeRoute{Index: bridge}
	}
	if s.ways != nil && maps.Equal(want, s.ways) {
		return
	}
	s.ways, s.problem = nil, ""
	s.host.Step("write bridges of pods")
	if err := s.maps.SetNodeRoutes(want); err != nil {
		s.problem = "the bridges of pods: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		s.host.Log.Error("packets of bridged pods are dropped", "error", err)
		return
	}
	s.ways = want
}

// Problems implements dataplane.Component.
func (s *Sources) Problems() []string {
	all := s.checks.Problems()
	if s.problem != "" {
		all = append(all, s.problem)
	}
	return all
}

// PathModes counts the attached pods by how packets reach them.
func (s *Sources) PathModes() []dataplane.PathMode {
	pods := s.pods()
	return dataplane.CountModes("foreign_addresses", map[string]int{"routed": len(pods.Routed), "bridged": len(pods.Bridged)})
}

// Close does nothing.
func (s *Sources) Close() error { return nil }
