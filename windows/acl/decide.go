// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Decide decides a packet of an endpoint as HNS does. by names the ACL that decides. All meanings of what HNS leaves open
// must agree; otherwise there is an error.
func (r *Ruleset) Decide(id model.EndpointID, p hns.Packet) (v model.Verdict, by string, err error) {
	if len(r.Lists[id]) == 0 {
		return model.Allow, "the endpoint has no ACLs: HNS passes everything", nil
	}
	rules, err := r.Rules(id)
	if err != nil {
		return model.Deny, "", fmt.Errorf("the ACLs of the endpoint cannot be read: %w", err)
	}
	verdict := model.Deny
	for i, reading := range hns.Readings() {
		out := rules.Decide(p, reading)
		v := model.Deny
		if out.Allow {
			v = model.Allow
		}
		if i > 0 && v != verdict {
			return model.Deny, "", fmt.Errorf("the verdict depends on what HNS does not document (%s): Isthmus writes no such ACLs", reading)
		}
		verdict, by = v, "ACL "+out.ID
		if out.Index < 0 {
			by = "no ACL"
		}
	}
	return verdict, by, nil
}

// Installed returns a function that decides new flows by lists in the JSON form of a Ruleset, as they were read back.
func Installed(lists []byte) (func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error), error) {
	r := new(Ruleset)
	if err := json.Unmarshal(lists, r); err != nil {
		return nil, fmt.Errorf("read ACLs: %w", err)
	}
	return func(id model.EndpointID, d model.Direction, remote netip.Addr, protocol model.Protocol, port uint16) (model.Verdict, string, error) {
		return r.Decide(id, hns.Packet{Direction: PacketDirection(d), Remote: remote, Protocol: uint8(protocol), Port: port})
	}, nil
}
