// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// Lists returns what ACLs in the form of inspect.Installed decide.
type Lists func(lists []byte) (func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error), error)

// InstalledOf returns what the data path of a Bundle decides, as it was read back. lists reads ACLs of HNS; it may be nil
// for a Bundle of Linux.
func InstalledOf(b *inspect.Bundle, lists Lists) (Installed, error) {
	switch {
	case b.Installed == nil:
		why := strings.Join(b.About.Notes, "; ")
		return func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error) {
			return model.Deny, "", fmt.Errorf("the decisions of the data path are unknown: %s", why)
		}, nil
	case b.Installed.State != nil:
		p := &b.Installed.State.Policy
		return func(id model.EndpointID, d model.Direction, remote netip.Addr, protocol model.Protocol, port uint16) (model.Verdict, string, error) {
			by := ""
			if _, ok := p.Endpoints[id]; !ok {
				by = "the endpoint has no slot"
			}
			return p.Decide(id, d, remote, protocol, port).Verdict, by, nil
		}, nil
	case lists == nil:
		return nil, fmt.Errorf("read the ACLs of node %s: only possible on Windows", b.About.Node)
	}
	installed, err := lists(b.Installed.Lists)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", b.About.Node, err)
	}
	return installed, nil
}
