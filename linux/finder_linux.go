// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"net"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux/foreign"
)

var _ dataplane.Finder = (*Backend)(nil)

// Interfaces implements dataplane.Finder. In full mode there are none.
func (b *Backend) Interfaces(context.Context) ([]dataplane.Interface, error) {
	if b.ends.Registry == nil {
		return nil, nil
	}
	seen, err := b.ends.Scan()
	if err != nil {
		return nil, err
	}
	var all []dataplane.Interface
	var handles []string
	for _, s := range seen {
		i := dataplane.Interface{Handle: b.ends.Handle(s.HostEnd), Name: s.Name, IfName: s.IfName, Addresses: s.Addresses,
			Owner: b.ends.Owner(s.HostEnd), Problem: s.Problem}
		if index, ok := b.ends.closed[s.Name]; ok && index == s.Index && i.Owner == "" {
			if i.Closed, err = b.drops(s.Name, index); err != nil {
				return nil, err
			}
			if i.Closed {
				i.ClosedFor = b.ends.Held(i.Handle)
			}
		}
		all, handles = append(all, i), append(handles, i.Handle)
	}
	return all, b.ends.Forget(handles)
}

// FindInterface implements dataplane.Finder.
func (b *Backend) FindInterface(_ context.Context, spec dataplane.EndpointSpec) (net.HardwareAddr, error) {
	end, err := foreign.Find(spec.NetNS, spec.IfName, spec.IPs)
	return end.PodMAC, err
}

// CloseInterface implements dataplane.Finder. Programs without an entry for their interface drop every packet.
func (b *Backend) CloseInterface(_ context.Context, handle, claim string) error {
	seen, err := b.ends.Scan()
	if err != nil {
		return err
	}
	for _, s := range seen {
		if b.ends.Handle(s.HostEnd) != handle || b.ends.Owner(s.HostEnd) != "" {
			continue
		}
		b.step("hold interface")
		err := b.ends.Hold(handle, claim)
		return errors.Join(err, b.attachClosed(s.HostEnd)) // a full disk must not leave it open
	}
	return nil
}

func (b *Backend) attachClosed(end foreign.HostEnd) error {
	b.step("close interface")
	if err := b.path.DropEndpoint(end.Index); err != nil {
		return err
	}
	if err := b.programForeign(end.Name, end.Index); err != nil {
		return err
	}
	b.ends.closed[end.Name] = end.Index
	return nil
}
