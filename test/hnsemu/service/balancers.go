// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
)

// dsr is the flag of a load balancer with direct server return.
const dsr = 1

// Balancers returns the load balancers after the last call that changed objects.
func (s *Service) Balancers() []vfp.Balancer {
	if all := s.balancers.Load(); all != nil {
		return *all
	}
	return nil
}

// noteBalancers publishes the load balancers for the switch. It leaves out backends whose endpoint
// no longer exists.
func (s *Service) noteBalancers() {
	var all []vfp.Balancer
	for _, id := range s.extra.order[balancers] {
		d := s.extra.objects[balancers][id]
		flags, _ := d["Flags"].(float64)
		b := vfp.Balancer{DSR: uint32(flags)&dsr != 0}
		for _, endpoint := range d.texts("HostComputeEndpoints") {
			e, err := s.config.HNS.Endpoint(context.Background(), endpoint)
			if err != nil {
				continue
			}
			for _, c := range e.IPConfigurations {
				if a, err := netip.ParseAddr(c.IPAddress); err == nil {
					b.Backends = append(b.Backends, a)
				}
			}
		}
		vips := d.texts("FrontendVIPs")
		if len(vips) == 0 {
			vips = []string{""}
		}
		for _, m := range d.documents("PortMappings") {
			number := func(member string) uint16 { n, _ := m[member].(float64); return uint16(n) }
			b.Protocol, b.External, b.Internal = uint8(number("Protocol")), number("ExternalPort"), number("InternalPort")
			for _, vip := range vips {
				b.VIP, _ = netip.ParseAddr(vip)
				all = append(all, b)
			}
		}
	}
	s.balancers.Store(&all)
}

// addBalancer makes a load balancer of TCP port 443 of an address, or of the TCP port of a NodePort.
func (s *Service) addBalancer(q url.Values) (string, error) {
	vips, port := []any{q.Get("vip")}, 443
	if nodePort := q.Get("nodeport"); nodePort != "" {
		n, err := strconv.ParseUint(nodePort, 10, 16)
		if err != nil {
			return "", fmt.Errorf("nodeport: %w", err)
		}
		vips, port = nil, int(n)
	} else if _, err := netip.ParseAddr(q.Get("vip")); err != nil {
		return "", fmt.Errorf("vip: %w", err)
	}
	d := document{"FrontendVIPs": vips, "HostComputeEndpoints": []any{}, "Flags": float64(0),
		"PortMappings":  []any{map[string]any{"Protocol": float64(6), "InternalPort": float64(6443), "ExternalPort": float64(port)}},
		"SchemaVersion": map[string]any{"Major": float64(2), "Minor": float64(0)}}
	if q.Get("dsr") == "true" {
		d["Flags"] = float64(dsr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.extra.create(balancers, "", d, s.config.HNS)
	if err == nil {
		s.noteBalancers()
	}
	return id, err
}
