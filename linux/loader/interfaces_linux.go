// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// The map interfaces repeats what endpoints says, where programs find it by the
// lowest bits of the interface's index. They read it without a lock. So an entry
// whose index they can match is never changed: what changes while the interface
// lives is found in endpoints from then on, and the place stays taken.

// interfaces is that map, through shared memory, and the index that was last written
// to each place.
type interfaces struct {
	*ebpf.Memory
	named map[int64]uint32
}

const (
	interfaceSize = 64 // of an entry
	ifindexSize   = 4  // of what it begins with
)

func placeOf(ifindex uint32) int64 {
	return int64(ifindex%bpfobj.Interfaces) * interfaceSize
}

func (m interfaces) at(place int64) (i bpfobj.PodInterface, err error) {
	buf := make([]byte, interfaceSize)
	if _, err := m.ReadAt(buf, place); err != nil {
		return i, fmt.Errorf("read from map interfaces: %w", err)
	}
	return i, decode(buf, &i)
}

// name writes the index alone: one word.
func (m interfaces) name(place int64, ifindex uint32) error {
	var buf [ifindexSize]byte
	binary.NativeEndian.PutUint32(buf[:], ifindex)
	if _, err := m.WriteAt(buf[:], place); err != nil {
		return fmt.Errorf("write index %d to map interfaces: %w", ifindex, err)
	}
	m.named[place] = ifindex
	return nil
}

// put repeats an endpoint, if the place is free.
func (m interfaces) put(ifindex uint32, e bpfobj.PodEndpoint) error {
	place := placeOf(ifindex)
	if i, err := m.at(place); err != nil || i.Ifindex != 0 {
		return err
	}
	buf, err := binary.Append(nil, binary.NativeEndian, bpfobj.PodInterface{Endpoint: e})
	if err != nil {
		return err
	}
	if _, err := m.WriteAt(buf, place); err != nil {
		return fmt.Errorf("write to map interfaces: %w", err)
	}
	return m.name(place, ifindex)
}

// withdraw leaves an interface to the map endpoints, unless what is said of it
// is what it is about to say.
func (m interfaces) withdraw(ifindex uint32, next bpfobj.PodEndpoint) error {
	place := placeOf(ifindex)
	if i, err := m.at(place); err != nil || i.Ifindex != ifindex || i.Endpoint == next {
		return err
	}
	return m.name(place, ifindex|bpfobj.InterfaceKept)
}

// drop gives the place of an interface free that is gone.
func (m interfaces) drop(ifindex uint32) error {
	place := placeOf(ifindex)
	if i, err := m.at(place); err != nil || i.Ifindex&^bpfobj.InterfaceKept != ifindex {
		return err
	}
	return m.name(place, 0)
}

// audit finds places that hold another index than was written last, or what is not
// said of their interface. Repaired, they send programs to the map endpoints: what
// programs may be reading is not changed.
func (m interfaces) audit(known map[bpfobj.PodIfindex]bpfobj.PodEndpoint, repair bool) (found []string, err error) {
	buf := make([]byte, bpfobj.Interfaces*interfaceSize)
	if _, err := m.ReadAt(buf, 0); err != nil {
		return nil, fmt.Errorf("read from map interfaces: %w", err)
	}
	for place := int64(0); place < int64(len(buf)); place += interfaceSize {
		want, is := m.named[place], binary.NativeEndian.Uint32(buf[place:])
		right := is == want
		if right && want != 0 && want&bpfobj.InterfaceKept == 0 {
			var i bpfobj.PodInterface
			if err := decode(buf[place:place+interfaceSize], &i); err != nil {
				return nil, err
			}
			e, ok := known[bpfobj.PodIfindex{Ifindex: want}]
			right = ok && e == i.Endpoint
		}
		if right {
			continue
		}
		found = append(found, fmt.Sprintf("place %d: index %#x, want %#x and what endpoints says of it", place/interfaceSize, is, want))
		if want != 0 {
			want |= bpfobj.InterfaceKept
		}
		if repair {
			if err := m.name(place, want); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// openInterfaces maps the memory of interfaces and makes it agree with endpoints.
// An agent that does not know it may have been at work, and this one cut short.
func (d *DataPath) openInterfaces() error {
	memory, err := d.objects.Interfaces.Memory()
	if err != nil {
		return fmt.Errorf("map the memory of interfaces: %w", err)
	}
	d.interfaces = interfaces{memory, make(map[int64]uint32)}
	d.want.endpoints, d.want.locals, d.want.attachments = make(map[bpfobj.PodIfindex]bpfobj.PodEndpoint), make(map[netip.Addr]uint32), make(map[uint32]bpfobj.PodAttachment)
	known, err := d.Endpoints()
	if err != nil {
		return err
	}
	for place := int64(0); place < bpfobj.Interfaces*interfaceSize; place += interfaceSize {
		i, err := d.interfaces.at(place)
		if err != nil {
			return err
		}
		name := i.Ifindex
		if e, ok := known[int(i.Ifindex)]; i.Ifindex != 0 && (!ok || e != i.Endpoint) {
			name = 0
		}
		if name != i.Ifindex {
			if err := d.interfaces.name(place, name); err != nil {
				return err
			}
		}
		d.interfaces.named[place] = name
	}
	for index, e := range known {
		if err := d.interfaces.put(uint32(index), e); err != nil {
			return err
		}
	}
	return nil
}
