// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// The map interfaces repeats what endpoints says, where programs find it by the
// lowest bits of the interface's index. They read it without a lock. So an entry
// whose index they can match is never changed: what changes while the interface
// lives is found in endpoints from then on, and the place stays taken.

// interfaces is that map, through shared memory.
type interfaces struct{ *ebpf.Memory }

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

// openInterfaces maps the memory of interfaces and makes it agree with endpoints.
// An agent that does not know it may have been at work, and this one cut short.
func (d *DataPath) openInterfaces() error {
	memory, err := d.objects.Interfaces.Memory()
	if err != nil {
		return fmt.Errorf("map the memory of interfaces: %w", err)
	}
	d.interfaces = interfaces{memory}
	known, err := d.Endpoints()
	if err != nil {
		return err
	}
	for place := int64(0); place < bpfobj.Interfaces*interfaceSize; place += interfaceSize {
		i, err := d.interfaces.at(place)
		if err != nil {
			return err
		}
		if e, ok := known[int(i.Ifindex)]; i.Ifindex != 0 && (!ok || e != i.Endpoint) {
			if err := d.interfaces.name(place, 0); err != nil {
				return err
			}
		}
	}
	for index, e := range known {
		if err := d.interfaces.put(uint32(index), e); err != nil {
			return err
		}
	}
	return nil
}
