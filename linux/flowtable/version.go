// SPDX-License-Identifier: Apache-2.0

package flowtable

import "github.com/isthmus-net/isthmus/linux/bpfobj"

// Live reports whether an entry with this version has a flow.
func Live(version uint32) bool {
	return version&uint32(bpfobj.PodConnVersionVERSION_LIVE) != 0
}

// Derived are the maps that have one entry for each entry of another one, and follow from it.
var Derived = map[string][]string{
	"conns4": {"conn_index4", "conn_hints4"},
	"conns6": {"conn_index6", "conn_hints6"},
}
