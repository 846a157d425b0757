// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Forwarding is the path of packets between pods of different nodes through a node.
type Forwarding string

const (
	// Direct: the fast path, for packets that netfilter and connection tracking need not see.
	Direct Forwarding = "direct"
	// Stack: the host stack, with its netfilter.
	Stack Forwarding = "stack"
)

// forwarding keeps from_node attached to the devices that lead to other nodes, and the node
// routes in the maps. Until both are complete, packets use the host stack.
type forwarding struct {
	backend *Backend
	asks    bool // all programs query connection tracking
	now     wantedWays
	settled bool // maps and devices match the fabric
	failed  string
	due     time.Time
}

// lookAtWays is the interval between checks of the devices when no change is known.
const lookAtWays = time.Second

// tend reconciles devices and node routes with the fabric. It only logs errors, because packets
// then use the host stack.
func (f *forwarding) tend(now time.Time) {
	if now.Before(f.due) {
		return
	}
	f.due = now.Add(lookAtWays)
	err := errors.Join(f.learn(), f.settle())
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.failed {
		f.backend.log.Warn("packets between nodes go through the host stack", "error", strings.ReplaceAll(text, "\n", "; "))
	}
	f.failed = text
}

// learn loads programs that query connection tracking, once its kernel module is loaded.
func (f *forwarding) learn() error {
	b := f.backend
	if f.asks || b.path.Older() != "" {
		return nil
	}
	if asks, err := b.path.LearnToAsk(); err != nil || !asks {
		return err
	}
	b.step("exchange programs")
	if err := errors.Join(b.path.AdoptLinks(), b.renewClassifiers()); err != nil {
		return err
	}
	f.asks = true
	b.log.Info("programs can query connection tracking now")
	return nil
}

// wanted returns the devices that need from_node, and the node routes. Under an older layout no
// packet uses the fast path, because the older programs do not know such flows.
func (f *forwarding) wanted() (w wantedWays, known bool, err error) {
	w = wantedWays{make(map[string]int), make(map[netip.Prefix]loader.Way)}
	may := f.backend.cfg.Forwarding == Direct && f.asks && f.backend.path.Older() == ""
	all, known, err := f.backend.fabric.Ways()
	for _, one := range all {
		w.ways[one.Prefix] = loader.Way{Index: one.Index, Direct: may && one.Bypass}
		if may && one.Bypass {
			w.devices[one.Device] = one.Index
		}
	}
	return w, known, err
}

// wantedWays are the devices that need the program, and the node routes.
type wantedWays struct {
	devices map[string]int
	ways    map[netip.Prefix]loader.Way
}

// direct counts the node routes that allow the fast path.
func (w wantedWays) direct() (n int) {
	for _, way := range w.ways {
		if way.Direct {
			n++
		}
	}
	return n
}

// settle attaches programs before it writes node routes, and removes node routes before it
// detaches programs. Otherwise answers of fast-path flows would reach the host stack.
func (f *forwarding) settle() error {
	w, known, err := f.wanted()
	if err != nil || !known {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.devices)) {
		if err := f.attach(name, w.devices[name]); err != nil {
			return err
		}
	}
	if f.settled && maps.Equal(w.devices, f.now.devices) && maps.Equal(w.ways, f.now.ways) {
		return nil
	}
	f.settled = false
	f.backend.step("write ways")
	if err := f.backend.path.SetWays(w.ways); err != nil {
		return err
	}
	f.backend.step("detach from devices")
	if err := f.detach(w.devices); err != nil {
		return err
	}
	if w.direct() != f.now.direct() {
		f.backend.log.Info("packets to pods of other nodes bypass the host stack", "ranges", w.direct(), "devices", slices.Sorted(maps.Keys(w.devices)))
	}
	f.now, f.settled = w, true
	return nil
}

func (f *forwarding) attach(name string, index int) error {
	if f.backend.tcx {
		return f.backend.path.AttachNode(name, index)
	}
	if f.settled {
		if has, err := link.HasNodeClassifier(index); err != nil || has {
			return err
		}
	}
	return link.SetNodeClassifier(index, f.backend.path.FromNode().FD())
}

// detach detaches the program from all devices except those in keep.
func (f *forwarding) detach(keep map[string]int) error {
	if !f.backend.tcx {
		indices := make(map[int]bool)
		for _, index := range keep {
			indices[index] = true
		}
		return link.DropNodeClassifiers(indices)
	}
	have, err := f.backend.path.NodeLinks()
	if err != nil {
		return err
	}
	for _, name := range have {
		if _, ok := keep[name]; ok {
			continue
		}
		if err := f.backend.path.DetachNode(name); err != nil {
			return err
		}
	}
	return nil
}

// mode is the path of packets to a pod range of another node.
func (f *forwarding) mode(h fabric.Hop) string {
	if f.now.ways[h.Prefix].Direct {
		return string(Direct) + "_" + string(h.Via)
	}
	return string(Stack) + "_" + string(h.Via)
}
