// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// endpointName returns the HNS name of an attachment: the container's id, the interface and the network,
// joined by underscores. HNS derives the interface's alias from it, so it cannot contain a colon.
func (c Config) endpointName(id model.EndpointID) (string, error) {
	container, ifName, ok := strings.Cut(string(id), ":")
	if !ok || container == "" || ifName == "" {
		return "", fmt.Errorf("endpoint id %q: want container:interface", id)
	}
	if strings.ContainsAny(ifName, `_\/:*?<>|" `) || strings.ContainsAny(container, `\/:*?<>|" `) {
		return "", fmt.Errorf("endpoint id %q: not valid as an HNS name; choose an interface name of letters and digits", id)
	}
	return container + "_" + ifName + "_" + c.Network, nil
}

// parseEndpointName is the inverse of endpointName; ok reports whether the endpoint is ours.
func (c Config) parseEndpointName(name string) (id model.EndpointID, ok bool) {
	rest, ok := strings.CutSuffix(name, "_"+c.Network)
	i := strings.LastIndexByte(rest, '_')
	if !ok || i <= 0 || i == len(rest)-1 {
		return "", false
	}
	return model.MakeEndpointID(rest[:i], rest[i+1:]), true
}

// HostEndpoint returns the name of the host's own endpoint.
func (c Config) HostEndpoint() string { return c.Network + "_ep" }

// macOf derives a pod's MAC address from its IPv4 address, in the spelling of HNS.
func macOf(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("0E-2A-%02X-%02X-%02X-%02X", b[0], b[1], b[2], b[3])
}

// parseMAC parses a MAC address of HNS; it returns nil for an invalid one.
func parseMAC(text string) net.HardwareAddr {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil
	}
	return mac
}
