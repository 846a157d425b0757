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
	// Routes installs no routes beyond the segment: the network's own routers forward there.
	Routes Mode = "routes"
	// VXLAN tunnels to every node.
	VXLAN Mode = "vxlan"
	// None installs nothing: another component connects the pods of nodes.
	None Mode = "none"
)

// Valid reports whether the mode is one of the above.
func (m Mode) Valid() bool { return m == Auto || m == Routes || m == VXLAN || m == None }

// Tunnels reports whether a node of this mode has a tunnel endpoint.
func (m Mode) Tunnels() bool { return m == Auto || m == VXLAN }

// Config is the cluster administrator's configuration. It should be the same on all nodes.
type Config struct {
	Mode Mode
	// VNI and Port are those of VXLAN. Windows nodes need a VNI of 4096 or more, and port 4789.
	VNI  uint32
	Port uint16
	// MTU of pods, in bytes; 0 derives it from the underlay's MTU.
	MTU int
	// Masquerade masquerades pod traffic that leaves the cluster, except to Exceptions.
	Masquerade bool
	Exceptions []netip.Prefix
}

// Defaults returns a Config that suits any cluster.
func Defaults() Config { return Config{Mode: Auto, VNI: 4096, Port: 4789, Masquerade: true} }

// Limits of the settings. 1280 is the least MTU that IPv6 allows (RFC 8200,
// section 5).
const (
	minVNI = 4096
	maxVNI = 1<<24 - 1
	// MaxWindowsVNI is the greatest VNI that fits into HNS's routes to other nodes. WindowsPort is the only
	// UDP port that HNS uses.
	MaxWindowsVNI = 1<<16 - 1
	WindowsPort   = 4789

	minMTU = 1280
	maxMTU = 65535
)

// ValidateForWindows reports which tunnel settings Windows nodes do not support.
func (c Config) ValidateForWindows() error {
	var errs []error
	if c.VNI < minVNI || c.VNI > MaxWindowsVNI {
		errs = append(errs, fmt.Errorf("VNI %d: Windows supports %d to %d: set one of these on the agents of all nodes", c.VNI, minVNI, MaxWindowsVNI))
	}
	if c.Port != WindowsPort {
		errs = append(errs, fmt.Errorf("VXLAN port %d: Windows supports only %d: set it on the agents of all nodes", c.Port, WindowsPort))
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
		errs = append(errs, fmt.Errorf("VNI %d: use a number from %d (the minimum on Windows) to %d", c.VNI, minVNI, maxVNI))
	}
	if c.Port == 0 {
		errs = append(errs, errors.New("VXLAN port 0: use a number from 1 to 65535; Windows supports only 4789"))
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

// The bytes that VXLAN adds to a packet: the outer IP and UDP headers, its own, and the inner Ethernet
// header (RFC 7348, section 5).
const (
	overhead4 = 20 + 8 + 8 + 14
	overhead6 = 40 + 8 + 8 + 14
)

// PodMTU returns the MTU of pods, in bytes, on a node whose underlay has the given MTU. outer6 is true if
// tunnels use IPv6. It leaves room for tunnels whenever one may be needed, so that the MTU does not change
// when a node joins.
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

// VTEP returns the default MAC of a node's tunnel endpoint: locally administered and derived from the
// node's name. Linux nodes therefore need not publish their MACs.
func VTEP(node string) model.MAC {
	sum := sha256.Sum256([]byte("vtep " + node))
	m := model.MAC(sum[:6])
	m[0] = m[0]&0xfc | 0x02
	return m
}
