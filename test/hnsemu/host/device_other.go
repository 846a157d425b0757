// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"errors"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// Stack has no namespace to change.
func (*Host) Stack() hostroute.Stack { return nil }

// underlay has no nodes to lead to.
func (*Host) underlay() (vfp.Underlay, error) {
	return nil, errors.New("packets are moved on Linux only")
}

// divert has no routing to change.
func (*Host) divert([]nodePorts) error { return nil }

// open has no network namespaces to lead to.
func (*Host) open(vfp.Spec) (vfp.Device, error) {
	return nil, errors.New("packets are moved on Linux only; make namespaces without netns")
}
