// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// Mode is how a node takes part in the fabric.
type Mode string

// The modes.
const (
	// Auto routes inside one segment and tunnels across segments.
	Auto Mode = "auto"
	// Routes leaves what is beyond the segment to the network's own routers.
	Routes Mode = "routes"
	// VXLAN tunnels to every node.
	VXLAN Mode = "vxlan"
	// None leaves the reaching of other nodes' pods to others.
	None Mode = "none"
)

// Valid reports whether the mode is one of those above.
func (m Mode) Valid() bool { return m == Auto || m == Routes || m == VXLAN || m == None }

// Tunnels reports whether a node of this mode has an end for tunnels.
func (m Mode) Tunnels() bool { return m == Auto || m == VXLAN }

// Config is what the cluster's administrator decides. It should be the same on
// all nodes.
type Config struct {
	Mode Mode
	// VNI and Port are those of the VXLAN. Windows takes part only with a VNI of
	// 4096 or more, and on Port 4789.
	VNI  uint32
	Port uint16
	// MTU of pods; 0 derives it from the underlay's.
	MTU int
	// Masquerade hides pods behind their node when they leave the cluster, except
	// for destinations in Exceptions.
	Masquerade bool
	Exceptions []netip.Prefix
}

// Defaults returns a Config for any cluster.
func Defaults() Config { return Config{Mode: Auto, VNI: 4096, Port: 4789, Masquerade: true} }

// Limits of the settings. 1280 is the least MTU that IPv6 allows (RFC 8200,
// section 5).
const (
	minVNI = 4096
	maxVNI = 1<<24 - 1
	// MaxWindowsVNI is the greatest that HNS has room for in the routes to other
	// nodes, and WindowsPort the only UDP port that it uses.
	MaxWindowsVNI = 1<<16 - 1
	WindowsPort   = 4789

	minMTU = 1280
	maxMTU = 65535
)

// ValidateForWindows reports what Windows nodes cannot do with tunnels of the
// Config.
func (c Config) ValidateForWindows() error {
	var errs []error
	if c.VNI < minVNI || c.VNI > MaxWindowsVNI {
		errs = append(errs, fmt.Errorf("VNI %d: Windows takes %d to %d: give one of these to the agents of all nodes", c.VNI, minVNI, MaxWindowsVNI))
	}
	if c.Port != WindowsPort {
		errs = append(errs, fmt.Errorf("VXLAN port %d: Windows knows %d only: give it to the agents of all nodes", c.Port, WindowsPort))
	}
	return errors.Join(errs...)
}

// Validate reports everything that is wrong with the Config.
func (c Config) Validate() error {
	var errs []error
	if !c.Mode.Valid() {
		errs = append(errs, fmt.Errorf("fabric %q: use auto, routes, vxlan or none", c.Mode))
	}
	if c.VNI < minVNI || c.VNI > maxVNI {
		errs = append(errs, fmt.Errorf("VNI %d: use a number from %d (the least for Windows) to %d", c.VNI, minVNI, maxVNI))
	}
	if c.Port == 0 {
		errs = append(errs, errors.New("VXLAN port 0: use a number from 1 to 65535; Windows knows 4789 only"))
	}
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		errs = append(errs, fmt.Errorf("MTU %d: use a number from %d to %d, or 0 to derive it", c.MTU, minMTU, maxMTU))
	}
	for _, p := range c.Exceptions {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("masquerade exception %s: write it as ADDRESS/BITS without host bits", p))
		}
	}
	return errors.Join(errs...)
}

// What VXLAN adds to a packet: the outer IP and UDP headers, its own, and the
// inner Ethernet header (RFC 7348, section 5).
const (
	overhead4 = 20 + 8 + 8 + 14
	overhead6 = 40 + 8 + 8 + 14
)

// PodMTU is the MTU of pods on a node whose underlay has the given MTU and
// whose tunnels go over IPv6 or IPv4. It leaves room for tunnels whenever one
// could be needed, so that it does not change when a node joins.
func (c Config) PodMTU(underlay int, outer6 bool) int {
	switch {
	case c.MTU != 0:
		return c.MTU
	case !c.Mode.Tunnels():
		return underlay
	case outer6:
		return max(underlay-overhead6, minMTU)
	}
	return max(underlay-overhead4, minMTU)
}

// VTEP is the hardware address of the tunnels' end of a node that does not say
// another: locally administered, made of the node's name. So Linux nodes need
// not tell each other.
func VTEP(node string) model.MAC {
	sum := sha256.Sum256([]byte("vtep " + node))
	m := model.MAC(sum[:6])
	m[0] = m[0]&0xfc | 0x02
	return m
}
