// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"errors"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
)

// underlay has no nodes to lead to.
func (*Host) underlay() (vfp.Underlay, error) {
	return nil, errors.New("packets are moved on Linux only")
}

// open has no network namespaces to lead to.
func (*Host) open(vfp.Spec) (vfp.Device, error) {
	return nil, errors.New("packets are moved on Linux only; make namespaces without netns")
}
