// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/clock"
)

// Settings are the parameters of the loaded programs.
type Settings struct {
	Timeouts Timeouts
	Events   Events
	// Direct lets packets between pods of different nodes use the fast path, where SetNodeRoutes
	// allows it.
	Direct bool
	// Foreign is true if another CNI plugin made the interfaces of the pods.
	Foreign bool
	// ObserveNode is true if all pods of the node are observed; see model.ObserveAll.
	ObserveNode bool
	// Tunnel is the tunnel of the fabric. Without one, the programs do not check tunneled
	// packets.
	Tunnel Tunnel
	// Flows is the flow table size of a sandbox, for each IP version; 0 is the default.
	Flows int
	// Errors is the number of ICMP errors about its flows that a pod of a sandbox may send, and
	// receive, until Replayer.Age. 0 is the default, a budget that refills with time.
	Errors int
	// Tracking reports the connection tracking of the kernel; nil probes the kernel.
	Tracking func() Tracking
	// Instrument changes the programs of a sandbox before they are loaded, for tests that
	// measure coverage; nil changes nothing.
	Instrument func(*ebpf.CollectionSpec) error
}

// Tunnel is the VXLAN device of the fabric: its UDP port, 0 if there is none, and its VNI.
type Tunnel struct {
	Port uint16
	VNI  uint32
}

// DefaultSettings returns the settings of an ordinary node.
func DefaultSettings() Settings {
	return Settings{Timeouts: DefaultTimeouts(), Events: DefaultEvents(), Direct: true}
}

// Timeouts are the idle times after which a flow counts as new.
type Timeouts struct {
	// Opening: packets in one direction only.
	Opening time.Duration
	// TCP: established connections.
	TCP time.Duration
	// Other: established flows of other protocols.
	Other time.Duration
	// Closing: both ends of a TCP connection have closed it, or one sent a reset.
	Closing time.Duration
}

// DefaultTimeouts follow RFC 5382 (TCP, 2 h 4 min) and RFC 4787 (UDP, at least 2 min) where
// these require more than common middleboxes give.
func DefaultTimeouts() Timeouts {
	return Timeouts{Opening: time.Minute, TCP: 124 * time.Minute, Other: 3 * time.Minute, Closing: time.Minute}
}

// Events limits the flow events that programs emit: verdicts on new flows, and drops.
type Events struct {
	// Rate is the maximum number of events per second for each pod and each of four kinds: by
	// direction, allowed and denied. 0 disables events.
	Rate int
	// Burst is the maximum number of events that an idle pod may cause at once.
	Burst int
	// Allowed makes the programs emit events for allowed new flows, too.
	Allowed bool
}

// The maximum values of Events: what one reader can process.
const (
	MaxEventRate  = 10_000
	MaxEventBurst = 100_000
)

// DefaultEvents returns limits that cost at most a few percent of one CPU, even if all pods of
// a full node are flooded.
func DefaultEvents() Events { return Events{Rate: 20, Burst: 100, Allowed: true} }

// Validate reports all invalid numbers.
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

// Limits on the ICMP errors that a pod may send and receive about its flows, per second and at
// once. Hosts send fewer: Linux limits itself to 1,000 per second in total (icmp(7)).
const (
	errorRate  = 100
	errorBurst = 200
)

// datagramLife is how long later fragments may follow the first one. Receivers wait for at most
// 60 s (RFC 8200, section 4.5).
const datagramLife = time.Minute

// AnswerTime is how long a flow waits for its first answer before it makes room for others in a
// full table. Most answers take less. A client whose handshake is cut off repeats it.
const AnswerTime = 100 * time.Millisecond

// programs returns the programs of pods.
func (s Settings) programs() (*ebpf.CollectionSpec, error) {
	if s.Foreign {
		return bpfobj.LoadPodForeign()
	}
	return bpfobj.LoadPod()
}

// constants returns the values of the programs' constants, by name. spec has the sizes of the
// maps.
func (s Settings) constants(spec *ebpf.CollectionSpec) (map[string]uint32, error) {
	hz, err := clock.MeasureHZ()
	if err != nil {
		return nil, fmt.Errorf("measure the kernel's clock rate: %w", err)
	}
	jiffies := func(d time.Duration) uint32 { return uint32(d.Seconds() * float64(hz)) }
	c := map[string]uint32{
		"timeout_opening": jiffies(s.Timeouts.Opening), "timeout_tcp": jiffies(s.Timeouts.TCP),
		"timeout_other": jiffies(s.Timeouts.Other), "timeout_closing": jiffies(s.Timeouts.Closing), "timeout_datagram": jiffies(datagramLife),
		"error_rate": errorRate, "error_window": uint32(errorBurst * hz),
		"conns_size4": spec.Maps["conns4"].MaxEntries, "conns_size6": spec.Maps["conns6"].MaxEntries,
		"ledger_spare": jiffies(AnswerTime),
		"tunnel_port":  uint32(s.Tunnel.Port), "tunnel_vni": s.Tunnel.VNI,
		"event_rate": uint32(s.Events.Rate), "event_cost": uint32(hz), "event_window": uint32(s.Events.Burst * hz), "event_allowed": 0,
	}
	if runtime.GOARCH != "amd64" { // x86 executes loads in order
		c["unordered_loads"] = 1
	}
	if s.Errors > 0 {
		c["error_rate"], c["error_window"] = 0, uint32(s.Errors*hz)
	}
	if s.Events.Allowed {
		c["event_allowed"] = 1
	}
	return c, nil
}

// setConstants sets the constants that the programs of a spec declare.
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
