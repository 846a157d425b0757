// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// NodeInfo returns what other nodes need to reach the pods. HNS chooses address and MAC of the tunnel
// endpoint of an overlay network. They are known once the network has found its adapter.
func (f *Fabric) NodeInfo() model.NodeInfo { return f.nodeInfo }

// Observe records the network as HNS has it now.
func (f *Fabric) Observe(n *hns.Network) {
	f.network = n
	if !f.cfg.Overlay {
		f.nodeInfo = model.NodeInfo{Fabric: string(fabric.Routes)}
		if f.cfg.Mode == fabric.None {
			f.nodeInfo.Fabric = string(fabric.None)
		}
		return
	}
	said := model.NodeInfo{Fabric: string(fabric.VXLAN)}
	if address, ok := tunnelAddress(n); ok {
		said.Tunnel = address
		if mac, err := model.ParseMAC(TunnelMAC(n)); err == nil {
			said.VTEP = mac
		}
	}
	f.nodeInfo = said
}

// aclPriority is the last before the ACLs of policy. Those of deny lists have lower numbers.
const aclPriority = 899

// ACLs returns those of every pod of an overlay network, which precede the ACLs of policy. They block what pods send to the port
// of tunnels. OutBoundNAT would give such a packet the address of this node, and its receiver would believe the addresses of the
// inner packet: they could be those of any pod here. The destination may be any: this node may not know a new node yet.
func (f *Fabric) ACLs() []hns.ACL {
	if !f.cfg.Overlay {
		return nil
	}
	return []hns.ACL{{ID: "out tunnel block", Protocols: strconv.Itoa(int(model.UDP)), RemotePorts: strconv.Itoa(fabric.WindowsPort),
		Action: hns.Block, Direction: hns.Out, RuleType: hns.Switch, Priority: aclPriority}}
}

// awaitTunnel rereads the tunnel endpoint of an overlay network that had none at the last read.
func (f *Fabric) awaitTunnel(ctx context.Context) error {
	if !f.cfg.Overlay || f.nodeInfo.VTEP != (model.MAC{}) {
		return nil
	}
	_, err := f.cfg.Find(ctx)
	return err
}

// HasTunnel reports whether an overlay network has its tunnel endpoint.
func HasTunnel(n *hns.Network) bool {
	_, ok := tunnelAddress(n)
	return ok && TunnelMAC(n) != ""
}

// CheckTunnel finds problems of an overlay network's tunnel endpoint.
func (f *Fabric) CheckTunnel(n *hns.Network) {
	was := f.tunnel
	f.tunnel = ""
	if !f.cfg.Overlay {
		return
	}
	address, ok := tunnelAddress(n)
	switch {
	case !ok || TunnelMAC(n) == "":
		f.tunnel = fmt.Sprintf("hns network %q has no tunnel address yet: no other node reaches the pods; if this persists, check Get-NetIPAddress and restart the hns service", n.Name)
	case !slices.Contains(f.cfg.NodeAddresses, address):
		f.tunnel = fmt.Sprintf("the tunnel address of hns network %q is %s, not one of this node's addresses (%v), to which other nodes send: restart the hns service, or the machine", n.Name, address, f.cfg.NodeAddresses)
	}
	if f.tunnel != "" && f.tunnel != was {
		f.host.Log.Warn("tunnel", "problem", f.tunnel)
	}
}

// tunnelAddress returns the tunnel address of an overlay network. While the adapter is being bound to a new
// switch the network has no address, or a self-assigned one.
func tunnelAddress(n *hns.Network) (netip.Addr, bool) {
	for _, p := range n.Policies {
		var pa hns.ProviderAddress
		if !p.Is(hns.TypeProviderAddress) || p.Decode(&pa) != nil {
			continue
		}
		a, err := netip.ParseAddr(pa.ProviderAddress)
		return a, err == nil && !a.IsLinkLocalUnicast() && !a.IsUnspecified()
	}
	return netip.Addr{}, false
}

// TunnelMAC returns the MAC address of an overlay network's tunnel endpoint.
func TunnelMAC(n *hns.Network) string {
	for _, p := range n.Policies {
		var dr hns.DrMacAddress
		if p.Is(hns.TypeDrMacAddress) && p.Decode(&dr) == nil {
			return dr.Address
		}
	}
	return ""
}
