// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Settings are what the programs are loaded with.
type Settings struct {
	Timeouts Timeouts
	Events   Events
	// Direct has packets between pods of different nodes pass the stack by, where
	// SetWays says that they may.
	Direct bool
	// Tunnel is that of the fabric; without one, packets of tunnels are not looked at.
	Tunnel Tunnel
	// Flows is how many flows of each family a sandbox has room for; 0 is the standard.
	Flows int
	// Errors is how many ICMP errors about its flows a pod of a sandbox may send, and
	// receive, until Replayer.Age; 0 is the standard, which refills with time.
	Errors int
	// Tracking says what there is of connection tracking by now; nil looks at the
	// kernel.
	Tracking func() Tracking
	// Instrument changes the programs of a sandbox before they are loaded, for tests that
	// measure which parts of them run; nil leaves them.
	Instrument func(*ebpf.CollectionSpec) error
}

// Tunnel is the VXLAN of the fabric: its UDP port, 0 if there is none, and its VNI.
type Tunnel struct {
	Port uint16
	VNI  uint32
}

// DefaultSettings are those of an ordinary node.
func DefaultSettings() Settings {
	return Settings{Timeouts: DefaultTimeouts(), Events: DefaultEvents(), Direct: true}
}

// Timeouts are how long flows may be idle before they count as new.
type Timeouts struct {
	// Opening: packets in one direction only.
	Opening time.Duration
	// TCP: established connections.
	TCP time.Duration
	// Other: established flows of other protocols.
	Other time.Duration
	// Closing: both ends of a TCP connection have closed it, or one was reset.
	Closing time.Duration
}

// DefaultTimeouts follow RFC 5382 (TCP, 2 h 4 min) and RFC 4787 (UDP, at least
// 2 min) where they ask for more than common middleboxes give.
func DefaultTimeouts() Timeouts {
	return Timeouts{Opening: time.Minute, TCP: 124 * time.Minute, Other: 3 * time.Minute, Closing: time.Minute}
}

// Events says how much the programs tell of single packets: new flows that were
// decided, and drops.
type Events struct {
	// Rate is how many events a second a pod may cause, of each of four kinds: by
	// direction, what passes and what does not. 0 is none at all.
	Rate int
	// Burst is how many a pod may cause at once that was quiet before.
	Burst int
	// Allowed has the programs tell of new flows that pass, too.
	Allowed bool
}

// The most that Events may ask for: what one reader can follow.
const (
	MaxEventRate  = 10_000
	MaxEventBurst = 100_000
)

// DefaultEvents are few enough that a node full of pods which are all flooded
// spends no more than a few percent of a processor on them.
func DefaultEvents() Events { return Events{Rate: 20, Burst: 100, Allowed: true} }

// Validate reports everything that is wrong with the numbers.
func (e Events) Validate() error {
	var errs []error
	if e.Rate < 0 || e.Rate > MaxEventRate {
		errs = append(errs, fmt.Errorf("rate of flow events %d: give a number from 0 to %d a second", e.Rate, MaxEventRate))
	}
	if e.Rate > 0 && (e.Burst < 1 || e.Burst > MaxEventBurst) {
		errs = append(errs, fmt.Errorf("burst of flow events %d: give a number from 1 to %d", e.Burst, MaxEventBurst))
	}
	return errors.Join(errs...)
}

// Errors of ICMP that a pod may send and receive about its flows, each a second and
// at once. Hosts send fewer: Linux limits itself to 1,000 a second over all (icmp(7)).
const (
	errorRate  = 100
	errorBurst = 200
)

// datagramLife is how long the later fragments of a datagram may follow the first:
// receivers wait for 60 s at most (RFC 8200, section 4.5).
const datagramLife = time.Minute

// constants are the values of the programs' constants, by name; spec has the sizes of
// the maps.
func (s Settings) constants(spec *ebpf.CollectionSpec) (map[string]uint32, error) {
	hz, err := measureHZ()
	if err != nil {
		return nil, fmt.Errorf("measure the kernel's clock rate: %w", err)
	}
	jiffies := func(d time.Duration) uint32 { return uint32(d.Seconds() * float64(hz)) }
	c := map[string]uint32{
		"timeout_opening": jiffies(s.Timeouts.Opening), "timeout_tcp": jiffies(s.Timeouts.TCP),
		"timeout_other": jiffies(s.Timeouts.Other), "timeout_closing": jiffies(s.Timeouts.Closing), "timeout_datagram": jiffies(datagramLife),
		"error_rate": errorRate, "error_window": uint32(errorBurst * hz),
		"ledger_size4": spec.Maps["ledger4"].MaxEntries, "ledger_size6": spec.Maps["ledger6"].MaxEntries,
		"tunnel_port": uint32(s.Tunnel.Port), "tunnel_vni": s.Tunnel.VNI,
		"event_rate": uint32(s.Events.Rate), "event_cost": uint32(hz), "event_window": uint32(s.Events.Burst * hz), "event_allowed": 0,
	}
	if s.Errors > 0 {
		c["error_rate"], c["error_window"] = 0, uint32(s.Errors*hz)
	}
	if s.Events.Allowed {
		c["event_allowed"] = 1
	}
	return c, nil
}

// setConstants gives the programs of a spec those of the constants that they have.
func setConstants(spec *ebpf.CollectionSpec, constants map[string]uint32) error {
	for name, value := range constants {
		variable, ok := spec.Variables[name]
		if !ok {
			continue
		}
		if err := variable.Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}
