// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxHostPorts bounds the host ports of one pod.
const maxHostPorts = 1000

// readPorts parses the host ports that a runtime requests. ADD refuses invalid ones; DEL works
// nevertheless.
func (c *Conf) readPorts(raw json.RawMessage) {
	const key = "runtimeConfig.portMappings"
	refuse := func(format string, args ...any) { c.refused = append(c.refused, key+fmt.Sprintf(format, args...)) }
	if raw == nil {
		return
	}
	var all []struct {
		HostPort, ContainerPort int64
		Protocol, HostIP        string
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		refuse(": it is not a list of objects with hostPort, containerPort, protocol and hostIP: correct the pod's ports")
		return
	}
	if len(all) > maxHostPorts {
		refuse(": %d host ports: use at most %d", len(all), maxHostPorts)
		return
	}
	for i, p := range all {
		if p.HostPort == 0 {
			continue // no host port
		}
		if p.HostPort < 0 || p.HostPort > 65535 || p.ContainerPort < 1 || p.ContainerPort > 65535 {
			refuse("[%d]: hostPort %d and containerPort %d: use numbers from 1 to 65535", i, p.HostPort, p.ContainerPort)
			continue
		}
		if p.Protocol == "" {
			p.Protocol = "TCP"
		}
		protocol, err := model.ParseProtocol(p.Protocol)
		if err != nil || !protocol.HasPorts() {
			refuse("[%d].protocol %q: use TCP, UDP or SCTP", i, p.Protocol)
			continue
		}
		if _, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && err != nil {
			refuse("[%d].hostIP %q: use an address of the node, or none", i, p.HostIP)
			continue
		}
		c.hostPorts = append(c.hostPorts, cniframe.HostPort{HostIP: p.HostIP, HostPort: uint32(p.HostPort),
			Port: uint32(p.ContainerPort), Protocol: uint32(protocol)})
	}
}
