// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"errors"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// Stack returns nil: only Linux has an IP stack to emulate the host's.
func (*Host) Stack() hostroute.Stack { return nil }

// underlay refuses: only Linux can connect emulated nodes.
func (*Host) underlay() (vfp.Underlay, error) {
	return nil, errors.New("packets are moved on Linux only")
}

// divert does nothing: there is no routing to change.
func (*Host) divert([]nodePorts) error { return nil }

// open refuses: there are no network namespaces.
func (*Host) open(vfp.Spec) (vfp.Device, error) {
	return nil, errors.New("packets are moved on Linux only; make namespaces without netns")
}
