// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// checkPolicies returns an error for policies of an endpoint that HNS refuses.
func (f *Fake) checkPolicies(op string, n *hns.Network, policies []hns.Policy) error {
	sets, err := n.Sets()
	if err != nil {
		return hns.NewError(op, hns.CodeInvalidJSON, err.Error())
	}
	nat := map[uint32]int{}
	var acls []hns.ACL
	for _, p := range policies {
		var err error
		switch {
		case p.Is(hns.TypeACL):
			if f.quirks.NoVFP {
				return hns.NewError(op, hns.CodeInvalidPolicy, "A policy is invalid.")
			}
			var a hns.ACL
			err = p.Decode(&a)
			acls = append(acls, a)
		case p.Is(hns.TypeOutBoundNAT):
			var o hns.OutBoundNAT
			if err = p.Decode(&o); err == nil {
				err = f.checkPrefixes(o.Exceptions)
			}
			if len(o.Destinations) == 0 {
				nat[o.Flags&hns.NATIPv6]++
			}
		case p.Is(hns.TypeSDNRoute):
			var s hns.SDNRoute
			if err = p.Decode(&s); err == nil {
				err = f.checkPrefixes([]string{s.DestinationPrefix})
			}
		case p.Is(hns.TypeProviderAddress):
			var a hns.ProviderAddress
			if err = p.Decode(&a); err == nil {
				_, err = netip.ParseAddr(a.ProviderAddress)
			}
		case p.Is(hns.TypeQOS):
			var q hns.QOS
			if err = p.Decode(&q); err == nil && q.MaximumOutgoingBandwidthInBytes == 0 {
				err = errors.New("no bandwidth")
			}
		case f.takes(p.Type):
			err = p.Decode(new(map[string]any))
		default:
			return hns.NewError(op, hns.CodeInvalidPolicyType, fmt.Sprintf("policy type %q", p.Type))
		}
		if err != nil {
			return hns.NewError(op, hns.CodeInvalidPolicy, err.Error())
		}
	}
	if nat[0] > 1 || nat[hns.NATIPv6] > 1 {
		return hns.NewError(op, hns.CodeInvalidPolicy, "more than one OutBoundNAT of a family")
	}
	return f.checkACLs(op, acls, sets)
}

// takes reports whether HNS supports a policy type of endpoints that Isthmus does not write. The Fake
// checks only that their settings are objects.
func (f *Fake) takes(kind string) bool {
	since := map[string]hns.Version{"L4WFPPROXY": WFPProxies, "TIERACL": TierACLs}
	kind = strings.ToUpper(kind)
	if first, gated := since[kind]; gated {
		return Since(f.version, first)
	}
	return slices.Contains([]string{"L2DRIVER", "PORTMAPPING", "L4PROXY", "PORTNAME", "ENCAPOVERHEAD", "IOV", "INTERFACECONSTRAINT", "VLAN"}, kind)
}

// checkPorts returns an error for a port of the node that another endpoint uses, or that is mapped twice.
func (f *Fake) checkPorts(op string, self *hns.Endpoint, policies []hns.Policy) error {
	if f.bug == BugPortTwice {
		return nil
	}
	taken := map[hns.PortMapping]bool{}
	collect := func(policies []hns.Policy) error {
		for _, p := range policies {
			var m hns.PortMapping
			if !p.Is(hns.TypePortMapping) {
				continue
			}
			if err := p.Decode(&m); err != nil {
				return hns.NewError(op, hns.CodeInvalidPolicy, err.Error())
			}
			m.InternalPort = 0
			if taken[m] {
				return hns.NewError(op, hns.CodePortExists, "The specified port already exists.")
			}
			taken[m] = true
		}
		return nil
	}
	for _, e := range f.endpoints {
		if e != self {
			if err := collect(e.Policies); err != nil {
				return err
			}
		}
	}
	return collect(policies)
}

// layered gives ACLs without a RuleType the layer Switch. Azure's plugin and NPM write such ACLs
// (azure-container-networking v1.7.0: cni/azure-windows-multitenancy.conflist, baseACLsForCalicoCNI).
func layered(acls []hns.ACL) []hns.ACL {
	acls = slices.Clone(acls)
	for i := range acls {
		if acls[i].RuleType == "" {
			acls[i].RuleType = hns.Switch
		}
	}
	return acls
}

func (f *Fake) checkACLs(op string, acls []hns.ACL, sets []hns.SetPolicy) error {
	if _, err := hns.ParseRules(layered(acls), sets); err != nil {
		return hns.NewError(op, hns.CodeInvalidPolicy, err.Error())
	}
	for _, a := range acls {
		if named, _ := hns.ParseProtocols(a.Protocols); f.quirks.NoSCTP != 0 && slices.Contains(named, 132) {
			return hns.NewError(op, f.quirks.NoSCTP, fmt.Sprintf("acl %q: protocol 132", a.ID))
		}
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			list, _ := hns.ParseAddresses(text)
			if f.version.Supports(hns.CanonicalCIDRs) && !list.Canonical {
				return hns.NewError(op, hns.CodeInvalidPolicy, fmt.Sprintf("acl %q: prefix with host bits in %q", a.ID, text))
			}
			if len(list.Sets) > 0 && !f.version.Supports(hns.Sets) {
				return hns.NewError(op, hns.CodeInvalidPolicy, fmt.Sprintf("acl %q: sets need hns 13.0", a.ID))
			}
		}
	}
	return nil
}

func (f *Fake) checkPrefixes(list []string) error {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if a, single := netip.ParseAddr(s); single == nil && f.Respell { // as an answer has it
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return err
		}
		if f.version.Supports(hns.CanonicalCIDRs) && p != p.Masked() {
			return fmt.Errorf("prefix %s has host bits", p)
		}
	}
	return nil
}

// sameJSON compares two settings by their meaning. HNS ignores unknown members and adds zero ones.
func sameJSON(a, b json.RawMessage) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return strings.TrimSpace(string(a)) == strings.TrimSpace(string(b))
	}
	return reflect.DeepEqual(x, y)
}
