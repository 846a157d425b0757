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

// Forwarding is how packets between pods of different nodes go through a node.
type Forwarding string

const (
	// Direct: past the stack, where nobody misses them there.
	Direct Forwarding = "direct"
	// Stack: through it, with its netfilter.
	Stack Forwarding = "stack"
)

// forwarding keeps from_node on the devices that lead to other nodes, and the
// ways to them in the maps. Whatever is not so, packets go through the stack.
type forwarding struct {
	backend *Backend
	asks    bool // all programs ask connection tracking
	now     wantedWays
	settled bool // it is so
	failed  string
	due     time.Time
}

// lookAtWays is how often the devices are looked at when nothing is known to
// have changed.
const lookAtWays = time.Second

// tend makes everything as the fabric is by now. What does not work is logged:
// nothing depends on it.
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
		f.backend.log.Warn("packets between nodes go through the stack", "error", strings.ReplaceAll(text, "\n", "; "))
	}
	f.failed = text
}

// learn puts programs that ask connection tracking where there are some that do
// not, once its module is there.
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
	b.log.Info("connection tracking can be asked by now")
	return nil
}

// wanted are the devices that should have from_node, and the ways. Under an older
// layout nothing bypasses the stack: its programs know no such flows.
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

// wantedWays are the devices that should have the program, and the ways.
type wantedWays struct {
	devices map[string]int
	ways    map[netip.Prefix]loader.Way
}

// direct counts the ways that bypass the stack.
func (w wantedWays) direct() (n int) {
	for _, way := range w.ways {
		if way.Direct {
			n++
		}
	}
	return n
}

// settle attaches before it names ways, and takes ways back before it detaches:
// answers to what went past the stack must not come to it.
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
		f.backend.log.Info("packets to pods of other nodes bypass the stack", "ranges", w.direct(), "devices", slices.Sorted(maps.Keys(w.devices)))
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

// detach takes the program off all devices but those that should have it.
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

// mode is how packets go to the pods of a range of another node.
func (f *forwarding) mode(h fabric.Hop) string {
	if f.now.ways[h.Prefix].Direct {
		return string(Direct) + "_" + string(h.Via)
	}
	return string(Stack) + "_" + string(h.Via)
}
