// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// dirBackend is a data path that survives the death of its process. Each attachment is a directory with a
// file per part. The state in force is a file that names the endpoints.
type dirBackend struct {
	dir  string
	step func(string)
}

var parts = []string{"deny", "interface", "addresses"}

func (b *dirBackend) path(elements ...string) string {
	return filepath.Join(append([]string{b.dir}, elements...)...)
}

// Features implements dataplane.Backend.
func (b *dirBackend) Features() model.Features {
	return model.Features{OS: model.Linux, Platform: "files"}
}

// AddEndpoint implements dataplane.Backend.
func (b *dirBackend) AddEndpoint(_ context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	name := strings.ReplaceAll(string(spec.ID), ":", "@")
	if err := os.MkdirAll(b.path("endpoints", name), 0o700); err != nil {
		return dataplane.Attachment{}, err
	}
	for _, part := range parts {
		b.step("backend.add." + part)
		if err := os.WriteFile(b.path("endpoints", name, part), []byte(fmt.Sprint(spec.IPs)), 0o600); err != nil {
			return dataplane.Attachment{}, err
		}
	}
	a := dataplane.Attachment{HostIfName: "host-" + name}
	for _, ip := range spec.IPs {
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, ip.BitLen()))
		a.Gateways = append(a.Gateways, netip.MustParseAddr("169.254.1.1"))
	}
	return a, nil
}

// DeleteEndpoint implements dataplane.Backend.
func (b *dirBackend) DeleteEndpoint(_ context.Context, id model.EndpointID) error {
	name := strings.ReplaceAll(string(id), ":", "@")
	for _, part := range slices.Backward(parts) {
		b.step("backend.delete." + part)
		if err := os.RemoveAll(b.path("endpoints", name, part)); err != nil {
			return err
		}
	}
	return os.RemoveAll(b.path("endpoints", name))
}

// Endpoints implements dataplane.Backend.
func (b *dirBackend) Endpoints(context.Context) ([]dataplane.Installed, error) {
	entries, err := os.ReadDir(b.path("endpoints"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var all []dataplane.Installed
	for _, e := range entries {
		i := dataplane.Installed{ID: model.EndpointID(strings.ReplaceAll(e.Name(), "@", ":"))}
		for _, part := range parts {
			if _, err := os.Stat(b.path("endpoints", e.Name(), part)); err != nil {
				i.Problems = append(i.Problems, part+" is missing")
			}
		}
		all = append(all, i)
	}
	return all, nil
}

// Apply implements dataplane.Backend.
func (b *dirBackend) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	var named []string
	for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
		named = append(named, string(id))
	}
	b.step("backend.apply")
	if err := os.WriteFile(b.path("inforce.tmp"), []byte(strings.Join(named, "\n")), 0o600); err != nil {
		return nil, err
	}
	return nil, os.Rename(b.path("inforce.tmp"), b.path("inforce"))
}

// InForce implements dataplane.Backend.
func (b *dirBackend) InForce(context.Context) (*model.State, error) { return nil, nil }

// Counters implements dataplane.Backend.
func (b *dirBackend) Idle(context.Context) (bool, error) { return false, nil }

func (b *dirBackend) Counters(context.Context) (dataplane.Counters, error) {
	return dataplane.Counters{}, nil
}

// Close implements dataplane.Backend.
func (b *dirBackend) Close() error { return nil }
