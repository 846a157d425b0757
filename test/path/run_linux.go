// SPDX-License-Identifier: Apache-2.0

package path

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/linux/xdp"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// Failure is a packet with another result than that of the reference.
type Failure struct {
	Step int    // the index of the step
	Kind string // "bypass", "loss", "detour", "epoch" or "table"
	Text string
}

func (f *Failure) Error() string { return fmt.Sprintf("step %d: %s: %s", f.Step+1, f.Kind, f.Text) }

// Totals count runs and results.
type Totals struct {
	Sequences, Packets int
	// Evicted counts flows that a scarce table evicted or refused.
	Evicted int
	// Fates counts runs of programs, by hook, fate and reason; Found differences by kind.
	Fates, Found map[string]int
}

// Add adds the counts of another runner.
func (t *Totals) Add(other *Totals) {
	t.Sequences += other.Sequences
	t.Packets += other.Packets
	t.Evicted += other.Evicted
	for reason, n := range other.Fates {
		t.Fates[reason] += n
	}
}

// Runner runs sequences of steps, one after the other, in the thread that made it.
type Runner struct {
	Totals Totals

	path    *loader.DataPath
	replay  *loader.Replayer
	arrival *arrival
	// shared and handover are the settings of the programs in the stack.
	shared, handover bool
	uplink           *xdp.Filter
	layout           *policymap.Layout
	layouts          *layouts
	node             *reference.Node
	track            conntrack
	clock            time.Time // for numbers that may not be reused yet
	dirty            bool
	hooked           bool              // the programs for netfilter hooks decide in the stack
	scarce           bool              // the reference follows evictions
	flows            int               // the capacity of the table
	digests          map[string]string // by pod, the digest of its policy at its epoch
	marks            []left
	waiting          map[fragmentKey]*datagram
	buf              []byte
	at               int // step
}

// left is a mark that from_pod set, and the record of the reference that belongs to it.
type left struct {
	mark   uint32
	record int
}

// Sizes of the flow table: Ample is never full, Scarce and Few nearly always. The programs look at 4 entries for
// a new flow, which are all of Few, and at 16 before they give up, which are all of Scarce.
const (
	Ample  = 4096
	Scarce = 16
	Few    = 4
	// Tight is usually full, and a new flow may find no entry.
	Tight = 40
)

// Open loads the programs in a new namespace, with a flow table of the given size. It needs root. Call all
// methods from the same goroutine, which stays in the namespace.
func Open(flows int, with Instruments) (*Runner, error) {
	if err := enterLab(); err != nil {
		return nil, err
	}
	s := loader.DefaultSettings()
	s.Timeouts = loader.Timeouts{Opening: timeouts.Opening, TCP: timeouts.TCP, Other: timeouts.Other, Closing: timeouts.Closing}
	s.Events = loader.Events{}
	s.Tunnel = loader.Tunnel{Port: tunnelPort, VNI: vni}
	s.Flows, s.Errors = flows, errorBurst
	a, err := newArrival()
	if err != nil {
		return nil, err
	}
	r := &Runner{arrival: a, layouts: newLayouts(), scarce: flows < Ample, flows: flows, clock: time.Now()}
	s.Instrument = func(spec *ebpf.CollectionSpec) error {
		if v := spec.Variables["handover"]; v != nil {
			if err := v.Set(r.handover); err != nil {
				return err
			}
		}
		return instrument(spec, a, with)
	}
	if with.Coverage != nil {
		s.Events = loader.DefaultEvents()
	}
	s.Tracking = func() loader.Tracking { return loader.FindTracking("/sys") }
	path, err := loader.OpenSandboxWith(s)
	if err != nil {
		return nil, err
	}
	r.path, r.layout = path, policymap.NewLayout(path.Capacity())
	r.Totals.Fates = make(map[string]int)
	if r.uplink, err = xdp.OpenSandbox(path.Shared(), path.Constants(), s.Instrument); err != nil {
		return nil, errors.Join(err, path.Close(), a.Close())
	}
	if r.replay, err = path.Replay(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	list := model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{"list": {Name: "list", Entries: denied}})).WithExempt(exempt)
	if err := errors.Join(r.surroundings(), r.uplink.Apply(denymap.Layout(list, nil))); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Hooks reports whether the kernel has programs of netfilter (Linux 6.4). Without them, filters decide in the stack also where a
// step selects the programs.
func (r *Runner) Hooks() bool { return r.replay.Hooks() }

// Close unloads the programs.
func (r *Runner) Close() error {
	return errors.Join(r.path.Close(), r.uplink.Close(), r.arrival.Close())
}

// surroundings writes the maps that do not change.
func (r *Runner) surroundings() error {
	owners := make(map[netip.Prefix]loader.Owner)
	for _, a := range nodeAddrs {
		owners[netip.PrefixFrom(a, a.BitLen())] = loader.NodeOwns
	}
	for _, a := range broadcasts {
		owners[netip.PrefixFrom(a, a.BitLen())] = loader.Broadcast
	}
	for _, p := range ranges {
		owners[p] = loader.PodsOwn
	}
	planned := make(map[netip.Prefix]loader.NodeRoute)
	for _, w := range routes {
		planned[w.Range] = loader.NodeRoute{Index: w.Device, Direct: w.Direct}
	}
	nodes := []loader.TunnelNode{{Name: "node2", Underlay: tunnels[0].Outer, Sources: tunnels[0].Inner}}
	return errors.Join(r.path.SetOwners(owners), r.path.SetNodeRoutes(planned), r.path.SetTunnelNodes(nodes),
		r.path.SetTunnelKinds(map[loader.TunnelKind]int{{Protocol: gre}: tunnel}))
}

// Run runs a sequence on a node without pods and flows. A *Failure is a packet with another result than that of
// the reference; other errors are failures of the test itself.
func (r *Runner) Run(steps []Step) error {
	if err := r.reset(); err != nil {
		return err
	}
	r.Totals.Sequences++
	for i := range steps {
		r.at = i
		if err := r.step(&steps[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) reset() error {
	r.node, r.digests, r.marks, r.dirty, r.hooked = newReference(), make(map[string]string), nil, false, false
	r.node.Tracked, r.node.Track, r.waiting = r.track.knows, r.track.learn, make(map[fragmentKey]*datagram)
	r.node.Receives = r.track.receives
	for id := range maps.Clone(r.layout.State().Policy.Endpoints) {
		if err := r.detach(string(id[:1])); err != nil {
			return err
		}
	}
	return errors.Join(r.upgrade("done"), r.replay.Forget(maxPods), r.track.flush())
}

func (r *Runner) step(s *Step) error {
	switch {
	case s.Pod != nil:
		return r.attach(s.Pod)
	case s.Remove != "":
		device := deviceOf(s.Remove)
		if r.node.Pods[device] == nil {
			return nil
		}
		delete(r.node.Pods, device)
		delete(r.digests, s.Remove)
		r.dirty = true
		return r.detach(s.Remove)
	case s.Age > 0:
		r.node.Age(s.age())
		return r.replay.Age(s.age(), maxPods)
	case s.Restart:
		return r.restart()
	case s.Forget:
		return r.track.flush()
	case s.Skip:
		r.node.SkipRecords()
		return r.replay.SkipRecords()
	case s.Upgrade != "":
		return r.upgrade(s.Upgrade)
	case s.Adopt > 0:
		return r.adopt(s.Adopt)
	case s.Form != "":
		r.hooked = s.Form == "hook" && r.Hooks()
		return nil
	case s.Packet == nil:
		return nil
	}
	if err := r.apply(); err != nil {
		return err
	}
	if s.Track {
		src, dst := s.Packet.Ends()
		_, err := r.track.add(&tracked{src: src, dst: dst, from: src, to: dst, proto: s.Packet.Proto})
		return err
	}
	r.Totals.Packets++
	if s.Unhinted {
		if err := r.replay.Unhint(); err != nil {
			return err
		}
	}
	return r.send(s)
}

// attach adds a pod to the node, or replaces its policy. apply updates the maps to the pods and their policies,
// as the agent does, and the epochs of the reference. A changed policy must have a new epoch. digest returns the
// verdicts of a pod's policy for every address and port. restart loads the programs over the existing maps, and
// reads their content. run sends a packet through a program.
func (r *Runner) run(h loader.Hook, device, ingress int, mark uint32, p *reference.Packet, src [6]byte) (loader.Outcome, error) {
	r.buf = frame(r.buf, p, src, hostMAC)
	if r.hooked {
		if err := r.arrival.set(mark, ingress); err != nil {
			return loader.Outcome{}, err
		}
	}
	out, err := r.replay.Run(h, loader.Replayed{Ifindex: device, Ingress: ingress, Mark: mark, Frame: r.buf, Hooked: r.hooked})
	if errors.Is(err, unix.EINVAL) {
		return out, fmt.Errorf("step %d: the kernel refuses the frame %x: %w", r.at+1, r.buf, err)
	}
	return out, err
}

// unsettle makes each verdict unsure, or ends that: the generation of the maps changes before each time that a program reads it.
func (r *Runner) unsettle(on bool) error {
	if on {
		return r.arrival.setStep(1)
	}
	return r.arrival.setStep(0)
}

// compare reports a difference between what a program did and what it should have done.
func (r *Runner) compare(hook string, out loader.Outcome, want reference.Verdict, p *reference.Packet) error {
	r.Totals.Fates[hook+": "+want.Fate.String()+": "+want.Why]++
	got := reference.Dropped
	if out.Redirected {
		got = reference.ToNode
		for _, pod := range r.node.Pods {
			if [6]byte(out.Frame[:6]) == pod.MAC {
				got = reference.ToPod
				if want.Fate == reference.ToPod && want.Pod != pod {
					return r.fail("bypass", hook, fmt.Sprintf("into pod %s instead of %s", pod.Name, want.Pod.Name), want, p)
				}
			}
		}
	} else if out.Passed {
		got = reference.ToStack
	}
	switch {
	case got == want.Fate && r.scarce:
		return r.follow(hook, want, p)
	case got == want.Fate:
		return nil
	case want.Fate == reference.Dropped:
		return r.fail("bypass", hook, got.String(), want, p)
	case got == reference.Dropped:
		return r.fail("loss", hook, got.String(), want, p)
	}
	return r.fail("detour", hook, got.String(), want, p)
}

// follow removes evicted flows from the reference.
func (r *Runner) follow(hook string, want reference.Verdict, p *reference.Packet) error {
	table := make(map[reference.Key]bool)
	if err := r.replay.Flows(func(a, b netip.AddrPort, proto uint8) {
		k, _ := reference.KeyOf(a, b, proto)
		table[k] = true
	}); err != nil {
		return err
	}
	gone, err := r.node.Follow(table, r.flows)
	r.Totals.Evicted += gone
	if err != nil {
		return r.fail("table", hook, err.Error(), want, p)
	}
	return nil
}

func (r *Runner) fail(kind, hook, got string, want reference.Verdict, p *reference.Packet) error {
	return &Failure{r.at, kind, fmt.Sprintf("%s: %s, want %s (%s): %s", hook, got, want.Fate, want.Why, Text([]Step{{Packet: p}}))}
}
