// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkLoopback checks that the plugin exists that containerd runs before all networks.
func (c Config) checkLoopback() []Finding {
	const check = "loopback plugin"
	path := filepath.Join(c.CNIBinDir, "loopback")
	info, err := os.Stat(filepath.Join(c.Root, path))
	switch {
	case os.IsNotExist(err):
		return []Finding{{check, Bad, path + " is missing", "containerd calls it for every pod, whatever the network is, and no pod starts without it",
			"install the package containernetworking-plugins (or kubernetes-cni), or give the directory with --cni-bin-dir"}}
	case err != nil:
		return []Finding{{check, Unknown, err.Error(), "containerd needs it", "run this as root"}}
	case info.Mode().Perm()&0o111 == 0:
		return []Finding{{check, Bad, path + " is not executable", "containerd calls it for every pod", "chmod 0755 " + path}}
	}
	return []Finding{{Check: check, Severity: Good, What: path}}
}

// others are other networks, by the prefixes of the names of their interfaces, and of their
// tables and chains of the packet filter.
var others = []struct {
	network            string
	interfaces, chains []string
}{
	{"Calico", []string{"cali", "tunl0", "vxlan.calico"}, []string{"cali-", "calico"}},
	{"Cilium", []string{"cilium_", "lxc"}, []string{"CILIUM_"}},
	{"Flannel", []string{"flannel", "cni0"}, []string{"FLANNEL"}},
	{"Weave", []string{"weave", "vethwe"}, []string{"WEAVE"}},
	{"kube-router", []string{"kube-bridge"}, []string{"KUBE-ROUTER", "KUBE-POD-FW", "KUBE-NWPLCY"}},
	{"Antrea", []string{"antrea-"}, []string{"ANTREA"}},
	{"the bridge plugin", []string{"cni0", "cbr0"}, []string{"CNI-"}},
}

// ownerOf names the networks with a prefix of the name; several networks may share a prefix.
func ownerOf(name string, prefixes func(i int) []string) (owners []string) {
	for i, o := range others {
		if slices.ContainsFunc(prefixes(i), func(p string) bool { return strings.HasPrefix(name, p) }) {
			owners = append(owners, o.network)
		}
	}
	return owners
}

// leftovers converts names into findings, one for each group of owners.
func leftovers(check, noun string, names []string, prefixes func(i int) []string, why, remedy string) []Finding {
	groups := make(map[string][]string)
	for _, n := range names {
		if owners := ownerOf(n, prefixes); len(owners) > 0 {
			key := strings.Join(owners, " or ")
			groups[key] = append(groups[key], n)
		}
	}
	var found []Finding
	for owners, names := range groups {
		slices.Sort(names)
		names = slices.Compact(names)
		more := ""
		if len(names) > 5 {
			more = fmt.Sprintf(" and %d more", len(names)-5)
			names = names[:5]
		}
		found = append(found, Finding{check, Warning, fmt.Sprintf("%s of %s: %s%s", noun, owners, strings.Join(names, ", "), more), why, remedy})
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return found
}
