// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"go4.org/netipx"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// makeResult converts the agent's answer to a result of the requested version.
func makeResult(r cniframe.AddResponse, ifName, netns string, dns types.DNS, want string) (types.Result, error) {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: dns}
	if r.HostIfName != "" {
		result.Interfaces = append(result.Interfaces, &types100.Interface{Name: r.HostIfName, Mac: r.HostMAC, Mtu: int(r.MTU)})
	}
	result.Interfaces = append(result.Interfaces, &types100.Interface{Name: ifName, Mac: r.MAC, Mtu: int(r.MTU), Sandbox: netns})
	inside := len(result.Interfaces) - 1
	gateways, err := gatewaysByFamily(r.Gateways)
	if err != nil {
		return nil, err
	}
	for _, s := range r.Addresses {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("read answer of the agent: address: %w", err)
		}
		ip := &types100.IPConfig{Interface: types100.Int(inside), Address: *netipx.PrefixIPNet(p)}
		if gateway, ok := gateways[p.Addr().Is6()]; ok {
			ip.Gateway = gateway.AsSlice()
			result.Routes = append(result.Routes, &types.Route{Dst: *netipx.PrefixIPNet(defaultRoute(p.Addr().Is6())), GW: gateway.AsSlice()})
		}
		result.IPs = append(result.IPs, ip)
	}
	if with11, err := version.GreaterThanOrEqualTo(want, "1.1.0"); err != nil || !with11 {
		for _, i := range result.Interfaces {
			i.Mtu = 0 // added in 1.1.0
		}
	}
	return result.GetAsVersion(want)
}

func gatewaysByFamily(gateways []string) (map[bool]netip.Addr, error) {
	byFamily := make(map[bool]netip.Addr)
	for _, s := range gateways {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("read answer of the agent: gateway: %w", err)
		}
		byFamily[a.Is6()] = a
	}
	return byFamily, nil
}

func defaultRoute(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// ownAddresses returns the addresses, with prefix length, of the pod's interface in a result. Later plugins
// may have added others.
func ownAddresses(result types.Result, ifName, netns string) ([]string, error) {
	r, err := types100.GetResult(result)
	if err != nil {
		return nil, fmt.Errorf("read prevResult: %w", err)
	}
	own := -1
	for i, inf := range r.Interfaces {
		if inf.Name == ifName && inf.Sandbox == netns {
			own = i
		}
	}
	if own < 0 {
		return nil, fmt.Errorf("read prevResult: it has no interface %s in %s", ifName, netns)
	}
	var all []string
	for _, ip := range r.IPs {
		if ip.Interface == nil || *ip.Interface == own {
			all = append(all, ip.Address.String())
		}
	}
	return all, nil
}
