// SPDX-License-Identifier: Apache-2.0

package loader

import "github.com/cilium/ebpf"

// Map returns a map that the programs share.
func (d *DataPath) Map(name string) *ebpf.Map { return d.maps()[name] }
