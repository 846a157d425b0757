// SPDX-License-Identifier: Apache-2.0

package bpfobj_test

import (
	"testing"
	"unsafe"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// The Go structs have the sizes that bpf/include/types.h asserts, and no padding without a name
// in C.
func TestSizes(t *testing.T) {
	for name, s := range map[string]struct{ got, want uintptr }{
		"slot":        {unsafe.Sizeof(bpfobj.PodSlot{}), 8},
		"endpoint":    {unsafe.Sizeof(bpfobj.PodEndpoint{}), 36},
		"interface":   {unsafe.Sizeof(bpfobj.PodInterface{}), 64},
		"attachment":  {unsafe.Sizeof(bpfobj.PodAttachment{}), 16},
		"prefix4":     {unsafe.Sizeof(bpfobj.PodPrefix4{}), 8},
		"prefix6":     {unsafe.Sizeof(bpfobj.PodPrefix6{}), 20},
		"verdict_key": {unsafe.Sizeof(bpfobj.PodVerdictKey{}), 8},
		"row":         {unsafe.Sizeof(bpfobj.PodRow{}), 128},
		"conn_key4":   {unsafe.Sizeof(bpfobj.PodConnKey4{}), 16},
		"conn_key6":   {unsafe.Sizeof(bpfobj.PodConnKey6{}), 40},
		"approval":    {unsafe.Sizeof(bpfobj.PodApproval{}), 8},
		"conn":        {unsafe.Sizeof(bpfobj.PodConn{}), 104},
		"conn_entry4": {unsafe.Sizeof(bpfobj.PodConnEntry4{}), 128},
		"conn_entry6": {unsafe.Sizeof(bpfobj.PodConnEntry6{}), 144},
		"datagram":    {unsafe.Sizeof(bpfobj.PodDatagram{}), 48},
		"counter":     {unsafe.Sizeof(bpfobj.PodCounter{}), 16},
	} {
		if s.got != s.want {
			t.Errorf("%s has %d bytes in Go, %d in C", name, s.got, s.want)
		}
	}
}
