// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"slices"
	"testing"
)

func TestFind(t *testing.T) {
	for want, o := range map[string]Objects{
		"Calico (Felix) (chain cali-FORWARD)":                                          {Chains: []string{"FORWARD", "cali-FORWARD", "cali-INPUT"}},
		"Calico (Felix) (table calico)":                                                {Tables: []string{"calico"}, Chains: []string{"filter-cali"}},
		"Calico (Felix) (interface bpfin.cali)":                                        {Interfaces: []string{"lo", "bpfin.cali"}},
		"Cilium (interface cilium_host)":                                               {Interfaces: []string{"cilium_host", "cilium_net", "lxc1234"}},
		"kube-router (chain KUBE-NWPLCY-DEFAULT)":                                      {Chains: []string{"KUBE-NWPLCY-DEFAULT"}},
		"Azure Network Policy Manager (chain AZURE-NPM-INGRESS)":                       {Chains: []string{"AZURE-NPM-INGRESS"}},
		"kube-network-policies (table kube-network-policies)":                          {Tables: []string{"kube-network-policies"}},
		"kindnet (table kindnet-network-policies)":                                     {Tables: []string{"kindnet-network-policies"}},
		"Antrea (interface antrea-gw0)":                                                {Interfaces: []string{"antrea-gw0"}},
		"OVN-Kubernetes (interface ovn-k8s-mp0)":                                       {Interfaces: []string{"ovn-k8s-mp0"}},
		"Amazon's network policy agent (programs in /sys/fs/bpf/globals/aws/programs)": {Pins: []string{"/sys/fs/bpf/globals/aws/programs"}},
		"Weave Net (chain WEAVE-NPC-DEFAULT)":                                          {Chains: []string{"WEAVE-NPC-DEFAULT"}},
	} {
		got := Find(o)
		if len(got) != 1 || got[0].String() != want || got[0].Remedy == "" {
			t.Errorf("%+v: %v, want %s", o, got, want)
		}
	}
	all := Find(Objects{Chains: []string{"WEAVE-NPC", "cali-INPUT"}, Interfaces: []string{"antrea-gw0"}})
	if names := []string{all[0].Name, all[1].Name, all[2].Name}; !slices.Equal(names, []string{"Calico (Felix)", "Antrea", "Weave Net"}) {
		t.Errorf("got %v", all)
	}
}

// TestFindNone: networks without an engine, kube-proxy, and Isthmus itself.
func TestFindNone(t *testing.T) {
	o := Objects{
		Tables:     []string{"filter", "nat", "kube-proxy", "isthmus", "flannel-ipv4", "cni_hostport"},
		Chains:     []string{"FORWARD", "KUBE-SERVICES", "KUBE-FORWARD", "KUBE-ROUTER", "FLANNEL-FWD", "FLANNEL-POSTRTG", "CNI-FORWARD", "AWS-SNAT-CHAIN-0", "IP-MASQ-AGENT", "filter-forward"},
		Interfaces: []string{"lo", "eth0", "cni0", "flannel.1", "cali1234567890a", "eni0123456789a", "azv123", "vxlan.calico", "kube-bridge", "ciliumlike"},
	}
	if got := Find(o); len(got) > 0 {
		t.Errorf("found %v", got)
	}
}
