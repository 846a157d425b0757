// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// SetInterfaces sets the interfaces that another CNI plugin made. One that is missing is gone.
func (f *Fake) SetInterfaces(all ...dataplane.Interface) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, was := range f.faces {
		f.gone[was.Handle] = true
	}
	for _, i := range all {
		delete(f.gone, i.Handle)
	}
	f.faces = slices.Clone(all)
}

// Interfaces implements Finder.
func (f *Fake) Interfaces(ctx context.Context) ([]dataplane.Interface, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := f.step(ctx, "interfaces"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.faces)
	for i := range all {
		for id, e := range f.attached {
			if e.spec.NetNS == all[i].Handle {
				all[i].Owner, all[i].Closed, all[i].ClosedFor = id, false, ""
			}
		}
	}
	return all, nil
}

// FindInterface implements Finder.
func (f *Fake) FindInterface(ctx context.Context, spec dataplane.EndpointSpec) (net.HardwareAddr, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := f.step(ctx, "find interface"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone[spec.NetNS] {
		return nil, fmt.Errorf("%s: %w", spec.NetNS, dataplane.ErrNoNetNS)
	}
	return attachment(spec).MAC, nil
}

// CloseInterface implements Finder.
func (f *Fake) CloseInterface(ctx context.Context, handle, claim string) error {
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	if err := f.step(ctx, "close interface"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.faces {
		if f.faces[i].Handle == handle {
			f.faces[i].Closed, f.faces[i].ClosedFor = true, claim
			f.log = append(f.log, "hold "+handle)
		}
	}
	return nil
}
