// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// Tunnel is the tunnel endpoint of an overlay network. Like VFP it learns nothing: it drops packets without a
// route.
type Tunnel struct {
	VNI    uint32
	MAC    net.HardwareAddr // the network's DrMacAddress
	Routes []TunnelRoute
}

// TunnelRoute is a RemoteSubnetRoute.
type TunnelRoute struct {
	Prefix netip.Prefix
	Node   netip.Addr
	MAC    net.HardwareAddr
}

// Underlay carries the datagrams of the tunnel, UDP port 4789. It passes received datagrams to Switch.Tunneled.
type Underlay interface {
	Send(node netip.Addr, datagram []byte) error
	Close() error
}

// Layout of VXLAN (RFC 7348, section 5): flags, of which only the VNI flag is set, and the VNI in bytes 4 to 6.
// The inner frame follows.
const (
	vxlanHeader = 8
	vxlanHasVNI = 0x08
)

// TunnelOf returns the tunnel of the overlay network in a service; nil if there is none, or if it has no adapter
// yet.
func TunnelOf(store *hnstest.Fake) (*Tunnel, error) {
	networks, err := store.Networks(context.Background())
	if err != nil {
		return nil, err
	}
	for i := range networks {
		if n := &networks[i]; strings.EqualFold(string(n.Type), string(hns.Overlay)) {
			return tunnelOf(n)
		}
	}
	return nil, nil
}

func tunnelOf(n *hns.Network) (*Tunnel, error) {
	t := &Tunnel{}
	for _, s := range n.Subnets() {
		for _, p := range s.Policies {
			var id hns.IsolationID
			if p.Is(hns.TypeVSID) && p.Decode(&id) == nil {
				t.VNI = id.IsolationID
			}
		}
	}
	for _, p := range n.Policies {
		switch {
		case p.Is(hns.TypeDrMacAddress):
			var dr hns.DrMacAddress
			err := p.Decode(&dr)
			if err == nil {
				t.MAC, err = net.ParseMAC(dr.Address)
			}
			if err != nil {
				return nil, fmt.Errorf("network %s: %w", n.Name, err)
			}
		case p.Is(hns.TypeRemoteSubnetRoute):
			var r hns.RemoteSubnetRoute
			if err := p.Decode(&r); err != nil {
				return nil, err
			}
			route, err := routeOf(r)
			if err != nil {
				return nil, fmt.Errorf("network %s: %w", n.Name, err)
			}
			if uint32(r.IsolationID) == t.VNI {
				t.Routes = append(t.Routes, route)
			}
		}
	}
	if t.MAC == nil {
		return nil, nil
	}
	return t, nil
}

func routeOf(r hns.RemoteSubnetRoute) (t TunnelRoute, err error) {
	if t.Prefix, err = netip.ParsePrefix(r.DestinationPrefix); err != nil {
		return t, err
	}
	if t.Node, err = netip.ParseAddr(r.ProviderAddress); err != nil {
		return t, err
	}
	t.MAC, err = net.ParseMAC(r.DrMacAddress)
	return t, err
}

// route finds the longest prefix that an address is in.
func (t *Tunnel) route(a netip.Addr) (best TunnelRoute, ok bool) {
	for _, r := range t.Routes {
		if r.Prefix.Contains(a) && (!ok || r.Prefix.Bits() > best.Prefix.Bits()) {
			best, ok = r, true
		}
	}
	return best, ok
}

// encapsulate wraps a pod's frame for another node. It may change the frame.
func (t *Tunnel) encapsulate(frame []byte, r TunnelRoute) []byte {
	datagram := make([]byte, vxlanHeader, vxlanHeader+len(frame))
	datagram[0] = vxlanHasVNI
	binary.BigEndian.PutUint32(datagram[4:], t.VNI<<8)
	copy(frame, r.MAC)
	copy(frame[6:], t.MAC)
	return append(datagram, frame...)
}

// decapsulate returns the frame in a datagram if it is for this end.
func (t *Tunnel) decapsulate(datagram []byte) (frame []byte, ok bool) {
	if len(datagram) < vxlanHeader+etherHeader || datagram[0]&vxlanHasVNI == 0 || binary.BigEndian.Uint32(datagram[4:])>>8 != t.VNI {
		return nil, false
	}
	frame = datagram[vxlanHeader:]
	return frame, bytes.Equal(frame[:6], t.MAC)
}

// SetTunnel replaces the tunnel of the switch; nil for none. The underlay is kept while there is one.
func (s *Switch) SetTunnel(t *Tunnel) error {
	s.set.Lock()
	defer s.set.Unlock()
	s.mu.RLock()
	u := s.underlay
	s.mu.RUnlock()
	var err error
	switch {
	case t != nil && u == nil:
		if u, err = s.config.Underlay(); err != nil {
			return fmt.Errorf("open the underlay of tunnels: %w", err)
		}
	case t == nil && u != nil:
		defer u.Close() // outside the lock: frames may be arriving
		u = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tunnel, s.underlay = t, u
	return nil
}

// Tunneled receives a datagram from the underlay. It may change it and does not keep it.
func (s *Switch) Tunneled(datagram []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tunnel == nil {
		return
	}
	frame, ok := s.tunnel.decapsulate(datagram)
	if !ok {
		return
	}
	in, err := parseFrame(frame)
	to := s.owners[in.dst]
	if err != nil || to == nil {
		return // no port to record it at
	}
	s.packets.Add(1)
	in.cut = (in.protocol == protoTCP || in.protocol == protoUDP) && !in.later && !whole(frame, &in)
	s.deliver(to, &in, frame)
}

// leave sends a frame of a port to another node; false if no route leads there.
func (s *Switch) leave(frame []byte, in *packet) bool {
	if s.tunnel == nil {
		return false
	}
	r, ok := s.tunnel.route(in.dst)
	if ok {
		// A packet that the underlay does not accept is lost, as on a wire.
		_ = s.underlay.Send(r.Node, s.tunnel.encapsulate(frame, r))
	}
	return ok
}
