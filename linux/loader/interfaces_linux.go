// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// The map interfaces copies the map endpoints into an array, which programs index by the low
// bits of the ifindex. They read it without a lock, so an entry that a program can match never
// changes. If the endpoint of an existing interface changes, its entry becomes empty but stays
// taken, and programs use the map endpoints from then on.

// interfaces is that map in shared memory, with the ifindex that was last written to each
// entry.
type interfaces struct {
	*ebpf.Memory
	named map[int64]uint32
}

const (
	interfaceSize = 64 // of an entry, in bytes
	ifindexSize   = 4  // of the first field, in bytes
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

// name writes only the ifindex of an entry: one word, so the write is atomic.
func (m interfaces) name(place int64, ifindex uint32) error {
	var buf [ifindexSize]byte
	binary.NativeEndian.PutUint32(buf[:], ifindex)
	if _, err := m.WriteAt(buf[:], place); err != nil {
		return fmt.Errorf("write index %d to map interfaces: %w", ifindex, err)
	}
	m.named[place] = ifindex
	return nil
}

// put copies an endpoint, if its entry is free.
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
	if err := orderStores(); err != nil {
		return err
	}
	return m.name(place, ifindex)
}

// withdraw empties the entry of an interface, unless it already holds next. Programs then use
// the map endpoints.
func (m interfaces) withdraw(ifindex uint32, next bpfobj.PodEndpoint) error {
	place := placeOf(ifindex)
	if i, err := m.at(place); err != nil || i.Ifindex != ifindex || i.Endpoint == next {
		return err
	}
	return m.name(place, ifindex|bpfobj.InterfaceKept)
}

// drop frees the entry of an interface that is gone.
func (m interfaces) drop(ifindex uint32) error {
	place := placeOf(ifindex)
	if i, err := m.at(place); err != nil || i.Ifindex&^bpfobj.InterfaceKept != ifindex {
		return err
	}
	return m.name(place, 0)
}

// audit finds entries that hold another ifindex than was last written, or another endpoint than
// their interface has. repair empties such entries, so that programs use the map endpoints. It
// does not rewrite them, because programs may be reading.
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
		found = append(found, fmt.Sprintf("entry %d: ifindex %#x, want %#x with the values of map endpoints", place/interfaceSize, is, want))
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

// openInterfaces maps the memory of interfaces and makes it consistent with endpoints. An
// earlier agent may not know the map, or may have stopped between two writes.
func (d *DataPath) openInterfaces() error {
	memory, err := d.objects.Interfaces.Memory()
	if err != nil {
		return fmt.Errorf("map the memory of interfaces: %w", err)
	}
	d.interfaces = interfaces{memory, make(map[int64]uint32)}
	d.want.endpoints = make(map[bpfobj.PodIfindex]bpfobj.PodEndpoint)
	d.want.locals = make(map[netip.Addr]uint32)
	d.want.attachments = make(map[uint32]bpfobj.PodAttachment)
	if err := d.openFurther(); err != nil {
		return err
	}
	known, err := d.Endpoints()
	if err != nil {
		return err
	}
	for place := int64(0); place < int64(bpfobj.Interfaces)*interfaceSize; place += interfaceSize {
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

func decode(b []byte, to any) error {
	_, err := binary.Decode(b, binary.NativeEndian, to)
	return err
}
