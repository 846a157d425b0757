// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// sdnbridge is a list of Microsoft's plugin, with ACLs as the plugin of AKS has them.
const sdnbridge = `{"cniVersion":"0.4.0","name":"isthmus","disableCheck":true,"plugins":[{"type":"sdnbridge","master":"Ethernet",` +
	`"optionalFlags":{"forceBridgeGateway":true},"ipam":{"type":"host-local","subnet":"10.244.3.128/26"},` +
	`"dns":{"Nameservers":["10.96.0.10"]},"AdditionalArgs":[` +
	`{"Name":"EndpointPolicy","Value":{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.244.0.0/16"]}}},` +
	`{"Name":"EndpointPolicy","Value":{"Type":"ACL","Settings":{"Protocols":"6","Action":"Block","Direction":"Out","RemoteAddresses":"168.63.129.16/32","RemotePorts":"80","Priority":200,"RuleType":"Switch"}}},` +
	`{"Name":"EndpointPolicy","Value":{"Type":"ACL","Settings":{"Action":"Allow","Direction":"In","Priority":65500}}},` +
	`{"Name":"EndpointPolicy","Value":{"Type":"ACL","Settings":{"Action":"Allow","Direction":"Out","Priority":65500}}}]}]}`

// chain is a list of a reference plugin, with isthmus-cni behind it or alone.
func (r reference) chain(t *testing.T, m *Machine, with bool) *libcni.NetworkConfigList {
	t.Helper()
	text := string(r.conf(t, m, nil).Bytes)
	if r.plugin == "sdnbridge" {
		text = sdnbridge
	}
	if with {
		text = strings.TrimSuffix(text, "]}") + `,{"type":"isthmus-cni","mode":"policy"}]}`
	}
	chained, err := libcni.NetworkConfFromBytes([]byte(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return chained
}

// foreigner is a pod that a reference plugin attaches.
func foreigner(t *testing.T, m *Machine, list *libcni.NetworkConfigList, name string) *inside {
	t.Helper()
	ns := netns.ForTest(t)
	id, err := m.Control("/namespace", url.Values{"netns": {ns.Path()}})
	if err != nil {
		t.Fatal(err)
	}
	p := &inside{Pod: Pod{Namespace: "shop", Name: name, Container: "sandbox-" + name, NetNS: id}, ns: ns}
	added, err := m.CNI().AddNetworkList(context.Background(), list, p.runtime())
	counted(t, "ADD", err)
	result, err := types100.GetResult(added)
	if err != nil || len(result.IPs) != 1 || len(result.Interfaces) != 1 {
		t.Fatalf("result %v, %v", added, err)
	}
	p.address, _ = netip.AddrFromSlice(result.IPs[0].Address.IP)
	p.address = p.address.Unmap()
	for _, port := range []uint16{80, 81} {
		if err := traffic.ServersFor(t).Echo(ns, netip.AddrPortFrom(p.address, port), model.TCP, model.UDP); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// rulesOf lists the ACLs of an endpoint, and the other policies.
func rulesOf(t *testing.T, m *Machine, endpoint string) (acls, rest []string) {
	t.Helper()
	in := false
	for _, line := range dumped(t, m) {
		switch {
		case !strings.HasPrefix(line, "    "):
			in = strings.HasPrefix(line, "  endpoint "+endpoint+" ")
		case in && strings.Contains(line, "id=isthmus"):
			acls = append(acls, strings.TrimSpace(line))
		case in:
			rest = append(rest, strings.TrimSpace(line))
		}
	}
	return acls, rest
}

// fresh ends the programs of a machine after a test, and removes their state.
func fresh(t *testing.T, m *Machine) {
	t.Cleanup(func() {
		if m.agent != nil {
			if err := m.KillAgent(); err != nil {
				t.Error(err)
			}
		}
		if err := m.StopEmulator(); err != nil {
			t.Error(err)
		}
		if err := m.Forget(); err != nil {
			t.Error(err)
		}
	})
}

// TestChainedPlugins runs isthmus-cni.exe in mode policy behind the real win-bridge.exe, win-overlay.exe and sdnbridge.exe: pods of a
// list that contains it, and one of a list that does not, which the agent adopts.
func TestChainedPlugins(t *testing.T) {
	m := machine(t)
	for _, r := range []reference{{"win-bridge", windows.L2Bridge, 2}, {"win-overlay", windows.Overlay, 2}, {"sdnbridge", windows.L2Bridge, 2}} {
		t.Run(r.plugin, func(t *testing.T) {
			fresh(t, m)
			logs(t, m)
			if err := m.StartEmulator(hns.Server2022, "--management-ip", "192.0.2.13", "--management-mac", "00-15-5D-00-00-01"); err != nil {
				t.Fatal(err)
			}
			dir := newManifests(t, "client", "web", "late")
			// The plugins use a network that exists. Here it is one that an agent of mode full has left.
			if err := m.StartAgent("win1", string(dir), "--hns-mode", string(r.mode)); err != nil {
				t.Fatal(err)
			}
			if err := m.KillAgent(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(m.File("prefix/drive_c/ProgramData/isthmus")); err != nil {
				t.Fatal(err)
			}
			late := foreigner(t, m, r.chain(t, m, false), "late")
			_, alone := rulesOf(t, m, "sandbox-late_isthmus")
			if err := m.StartAgent("win1", string(dir), "--mode=policy"); err != nil {
				t.Fatal(err)
			}
			chained(t, m, r, dir, late)
			uninstalled(t, m, alone)
			counted(t, "DEL", m.CNI().DelNetworkList(context.Background(), r.chain(t, m, false), late.runtime()))
		})
	}
}

func chained(t *testing.T, m *Machine, r reference, dir manifests, late *inside) {
	t.Helper()
	ctx := context.Background()
	list := r.chain(t, m, true)
	client := foreigner(t, m, list, "client")
	dir.write(t, "policy", policy("web", client.address.String()+"/32", 80)+"---\n"+policy("late", client.address.String()+"/32", 80))
	web := foreigner(t, m, list, "web")
	at := func(p *inside, port uint16) netip.AddrPort { return netip.AddrPortFrom(p.address, port) }
	counted(t, "CHECK", m.CNI().CheckNetworkList(ctx, list, web.runtime()))
	acls, rest := rulesOf(t, m, "sandbox-web_isthmus")
	_, theirs := rulesOf(t, m, "sandbox-late_isthmus")
	if len(acls) == 0 || len(rest) != len(theirs) {
		t.Errorf("%s: ACLs %q, policies %q beside them, want as many as %q", r, acls, rest, theirs)
	}
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(web, 80), true)
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(web, 81), false)
	passes(t, m, web.ns, model.UDP, netip.Addr{}, at(client, 81), true)
	passes(t, m, late.ns, model.TCP, netip.Addr{}, at(web, 80), false)
	// The API has the addresses now: the agent finds the endpoint of the pod that no ADD named.
	dir.writePods(t, client, web, late)
	for deadline := time.Now().Add(patience / 2); ; time.Sleep(50 * time.Millisecond) {
		if acls, _ := rulesOf(t, m, "sandbox-late_isthmus"); slices.ContainsFunc(acls, func(a string) bool {
			return strings.Contains(a, "Allow") && strings.Contains(a, client.address.String())
		}) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the running pod has ACLs %q", acls)
		}
	}
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(late, 80), true)
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(late, 81), false)
	passes(t, m, web.ns, model.TCP, netip.Addr{}, at(late, 80), false)
	for _, p := range []*inside{web, client} {
		for range 2 {
			counted(t, "DEL", m.CNI().DelNetworkList(ctx, list, p.runtime()))
		}
	}
	for _, e := range endpointsIn(dumped(t, m)) {
		if strings.Contains(e, "sandbox-web") || strings.Contains(e, "sandbox-client") {
			t.Errorf("after DEL: %s", e)
		}
	}
}

// uninstalled removes Isthmus. The adopted pod must have the policies of its plugin, and no others.
func uninstalled(t *testing.T, m *Machine, before []string) {
	t.Helper()
	if err := m.StopAgent(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-agent.exe"), "uninstall", "--hns-network=none")); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	acls, rest := rulesOf(t, m, "sandbox-late_isthmus")
	if len(acls) > 0 || fmt.Sprint(rest) != fmt.Sprint(before) {
		t.Errorf("after removal: ACLs %q and %q, before %q", acls, rest, before)
	}
}
