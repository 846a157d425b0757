// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"slices"
	"strings"
)

// Engine is a policy engine, and what shows that it is here.
type Engine struct {
	Name string
	// Evidence is a noun phrase, such as "chain cali-FORWARD".
	Evidence string
	// Remedy is how to turn it off.
	Remedy string
}

// String names the engine and the evidence.
func (e Engine) String() string { return fmt.Sprintf("%s (%s)", e.Name, e.Evidence) }

// Objects are the names of what is on a node.
type Objects struct {
	Tables, Chains, Interfaces []string
	// Pins are the directories of signatures that contain pinned programs.
	Pins []string
}

// signature holds the names by which an engine is recognised: prefixes, or whole names where they end with "$".
type signature struct {
	name, remedy               string
	tables, chains, interfaces []string
	// pins is the directory of pinned programs of an engine that has no other objects with names of its own; "" for none.
	pins string
}

// signatures hold the names that the engines give to their objects, as of 2026-11. A network without its engine must
// match none: interfaces of Calico's plugin (cali...) remain without Felix.
var signatures = []signature{
	{name: "Calico (Felix)", remedy: "uninstall Calico's policy engine and delete its rules, or restart the node", tables: []string{"calico$"}, chains: []string{"cali-"}, interfaces: []string{"bpfin.cali$", "bpfout.cali$"}},
	{name: "Cilium", remedy: "uninstall Cilium, and restart the node", chains: []string{"CILIUM_"}, interfaces: []string{"cilium_host$", "cilium_net$"}},
	{name: "kube-router", remedy: "start kube-router with --run-firewall=false, or k3s with --disable-network-policy, and delete its rules or restart the node", chains: []string{"KUBE-ROUTER-INPUT$", "KUBE-ROUTER-FORWARD$", "KUBE-NWPLCY-", "KUBE-POD-FW-"}},
	{name: "Azure Network Policy Manager", remedy: "update the cluster with --network-policy none", chains: []string{"AZURE-NPM"}},
	{name: "kube-network-policies", remedy: "delete its DaemonSet and its table (nft delete table inet kube-network-policies)", tables: []string{"kube-network-policies"}},
	{name: "kindnet", remedy: "create the cluster with disableDefaultCNI: true", tables: []string{"kindnet-network-policies"}},
	{name: "Antrea", remedy: "uninstall Antrea", chains: []string{"ANTREA-"}, interfaces: []string{"antrea-gw0$"}},
	{name: "OVN-Kubernetes", remedy: "use another network: its engine cannot be turned off", interfaces: []string{"ovn-k8s-mp0$"}},
	{name: "Amazon's network policy agent",
		remedy: "set enableNetworkPolicy of the VPC CNI add-on to \"false\", and delete its pins or restart the node", pins: "/sys/fs/bpf/globals/aws/programs"},
	{name: "Weave Net", remedy: "start weave-net with EXPECT_NPC=0 and without weave-npc", chains: []string{"WEAVE-NPC"}},
}

// Find returns the engines that own some of the objects, each once, in a fixed order.
func Find(o Objects) []Engine {
	var found []Engine
	for _, s := range signatures {
		for _, kind := range []struct {
			noun            string
			names, patterns []string
		}{{"table", o.Tables, s.tables}, {"chain", o.Chains, s.chains}, {"interface", o.Interfaces, s.interfaces}, {"programs in", o.Pins, []string{s.pins + "$"}}} {
			i := slices.IndexFunc(kind.names, func(name string) bool { return matches(name, kind.patterns) })
			if i >= 0 {
				found = append(found, Engine{Name: s.name, Evidence: kind.noun + " " + kind.names[i], Remedy: s.remedy})
				break
			}
		}
	}
	return found
}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		whole, exact := strings.CutSuffix(p, "$")
		return exact && name == whole || !exact && strings.HasPrefix(name, p)
	})
}
