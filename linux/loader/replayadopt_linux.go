// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/clock"
	"github.com/isthmus-net/isthmus/linux/migrate"
)

// ShareRecords lets the programs of a sandbox share the records of packets with those of an
// older layout, as in an upgrade, or decide alone.
func (d *DataPath) ShareRecords(share bool) error {
	alone := uint32(1)
	if share {
		alone = 0
	}
	if err := d.objects.DecidesAlone.Set(alone); err != nil {
		return fmt.Errorf("set decides_alone: %w", err)
	}
	return nil
}

// Adopt removes all flows from the table and stores them again, as MigrateFlows does with flows
// of an older layout. has are the fields of that layout; slots are those of the pods of this
// node.
func (r *Replayer) Adopt(slots map[netip.Addr]uint32, has migrate.FlowFields) error {
	limits, err := r.d.readLimits()
	if err != nil {
		return err
	}
	jiffies, err := clock.Open()
	if err != nil {
		return err
	}
	defer jiffies.Close()
	now, err := jiffies.Jiffies()
	if err != nil {
		return err
	}
	var all []bpfobj.PodAdoption
	keep := func(key any, v6 bool, c bpfobj.PodConn) error {
		a, ends, protocol, err := migrate.AdoptionOf(encoded(key), v6)
		flow, known := migrate.ConvertFlow(previous(c, has), has)
		if err != nil || !known || limits.Expired(&flow, protocol, now) {
			return err
		}
		a.Conn, a.Slots = flow, migrate.SlotsOf(ends, slots)
		all = append(all, a)
		return nil
	}
	err = errors.Join(
		r.each4(func(_ uint32, e *bpfobj.PodConnEntry4) error { return keep(e.Key, false, e.Conn) }),
		r.each6(func(_ uint32, e *bpfobj.PodConnEntry6) error { return keep(e.Key, true, e.Conn) }),
		r.forgetFlows())
	for _, a := range all {
		err = errors.Join(err, r.adopt(a))
	}
	return err
}

// adopt stores a flow of a pod of this node. It then reads the flow and replaces it by itself, as a migration does with flows that
// the table has. It also tries to replace a flow with other roles, and an earlier flow of the entry.
func (r *Replayer) adopt(a bpfobj.PodAdoption) error {
	if a.Slots == [2]uint32{bpfobj.NoSlot, bpfobj.NoSlot} {
		_, err := r.adoptOnce(a, bpfobj.FlowNoRoom)
		return err
	}
	if _, err := r.adoptOnce(a, bpfobj.FlowAdopted); err != nil {
		return err
	}
	there, err := r.adoptOnce(a, bpfobj.FlowKnown)
	if err != nil {
		return err
	}
	a.Conn, a.Replace, a.Had, a.HadFlags = there, 1, there.End, there.FlowFlags
	changed, flags, earlier := a, a, a
	changed.Had[1].Epoch++
	flags.HadFlags ^= bpfobj.ConnTranslated
	earlier.Conn.Version -= 2 * uint32(bpfobj.PodConnVersionVERSION_LIVE)
	_, err = r.adoptOnce(a, bpfobj.FlowAdopted)
	for _, step := range []struct {
		of   bpfobj.PodAdoption
		want uint32
	}{{changed, bpfobj.FlowKnown}, {flags, bpfobj.FlowKnown}, {earlier, bpfobj.FlowNoRoom}} {
		_, more := r.adoptOnce(step.of, step.want)
		err = errors.Join(err, more)
	}
	return err
}

// adoptOnce runs adopt_flow, and returns the flow that it returns.
func (r *Replayer) adoptOnce(a bpfobj.PodAdoption, want uint32) (there bpfobj.PodConn, err error) {
	data := encoded(a)
	run := ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data))}
	got, err := r.d.objects.AdoptFlow.Run(&run)
	if err != nil || got != want {
		return there, fmt.Errorf("migrate a flow: outcome %d instead of %d: %w", got, want, err)
	}
	var after bpfobj.PodAdoption
	if err := binary.Read(bytes.NewReader(run.DataOut), binary.NativeEndian, &after); err != nil {
		return there, fmt.Errorf("read a migrated flow: %w", err)
	}
	return after.Conn, nil
}

func encoded(v any) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, v); err != nil {
		panic(err) // structs of maps have a fixed size
	}
	return b.Bytes()
}

// previous returns a flow as a layout with these fields holds it.
func previous(c bpfobj.PodConn, has migrate.FlowFields) bpfobj.PodCarriedFlow {
	was := bpfobj.PodCarriedFlow{Seen: c.Seen, State: c.State, BackendPort: c.BackendPort, Backend: c.Backend, Client: c.Client}
	if has.End {
		was.End, was.FlowFlags, was.Sent = c.End, c.FlowFlags, c.Sent
		return was
	}
	const opened, accepted, revoked, direct, translated = 1, 2, 4, 1, 2 // flags of struct conn up to v2
	for end, a := range c.End {
		was.Packets[end] = uint64(c.Sent[end])
		was.Side[end] = a.Authorised & (opened | accepted)
		if a.Authorised&bpfobj.RoleRevoked != 0 {
			was.Side[end] |= revoked
		}
	}
	was.Flags = uint8(c.FlowFlags & (direct | translated))
	return was
}
