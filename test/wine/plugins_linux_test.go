// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// reference is a Windows plugin of the CNI project that uses one of the two schemas of HNS on a network of
// Isthmus.
type reference struct {
	plugin string
	mode   windows.Mode
	schema int
}

func (r reference) String() string { return fmt.Sprintf("%s schema %d", r.plugin, r.schema) }

// firstOfTheirs is the first address that the IPAM of the reference plugins assigns; those of Isthmus are lower.
const firstOfTheirs = "10.244.3.130"

// conf returns the CNI configuration of the reference plugins; the changes of a case come last.
func (r reference) conf(t *testing.T, m *Machine, change map[string]any) *libcni.NetworkConfigList {
	t.Helper()
	conf := map[string]any{
		"type": r.plugin, "apiVersion": r.schema, "capabilities": map[string]bool{"portMappings": true},
		"ipMasq": true, "ipMasqNetwork": "10.244.0.0/16",
		"dns":  map[string]any{"nameservers": []string{"10.96.0.10"}, "search": []string{"svc.cluster.local"}},
		"ipam": map[string]any{"type": "host-local", "subnet": "10.244.3.0/24", "rangeStart": firstOfTheirs, "rangeEnd": "10.244.3.139", "dataDir": Path(m.File("ipam"))},
	}
	name := "isthmus"
	for k, v := range change {
		if k == "name" {
			name = v.(string)
			continue
		}
		conf[k] = v
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": name, "plugins": []any{conf}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// theirs is a pod of a reference. By schema 1 it has two containers that share an
// endpoint, as dockershim had it; by schema 2 a namespace.
type theirs struct {
	*inside
	runtime []*libcni.RuntimeConf // of every ADD
}

func newTheirs(t *testing.T, m *Machine, r reference, name string) *theirs {
	t.Helper()
	ns := netns.ForTest(t)
	id, err := m.Control("/namespace", url.Values{"netns": {ns.Path()}})
	if err != nil {
		t.Fatal(err)
	}
	p := &theirs{inside: &inside{Pod: Pod{Namespace: "shop", Name: name, Container: "sandbox-" + name, NetNS: id}, ns: ns}}
	mappings := map[string]any{"portMappings": []map[string]any{{"hostPort": 8130, "containerPort": 80, "protocol": "tcp"}}}
	conf := func(container, netns string) *libcni.RuntimeConf {
		return &libcni.RuntimeConf{ContainerID: container, NetNS: netns, IfName: "eth0", CapabilityArgs: mappings}
	}
	p.runtime = []*libcni.RuntimeConf{conf(p.Container, id)}
	if r.schema == 1 {
		p.runtime = []*libcni.RuntimeConf{conf(p.Container, "none"), conf("app-"+name, "container:"+p.Container)}
		for _, c := range p.runtime {
			if _, err := m.Control("/container", url.Values{"id": {c.ContainerID}, "namespace": {id}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

// reported counts a call of a reference plugin that succeeded, or ends the test.
func reported(t *testing.T, r reference, what string, err error) {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.pluginsTotal++
	if err != nil {
		t.Fatalf("%s: %s: %v", r, what, err)
	}
	shared.plugins++
}

// complains is like reported, for a call that must fail with a reason.
func complains(t *testing.T, r reference, what string, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		err = fmt.Errorf("got %v, want an error with %q", err, why)
	} else {
		err = nil
	}
	reported(t, r, what, err)
}

// TestReferencePlugins runs win-bridge and win-overlay of the CNI project, on the networks that isthmus-agent has
// made, together with pods of Isthmus.
func TestReferencePlugins(t *testing.T) {
	for _, r := range []reference{{"win-bridge", windows.L2Bridge, 2}, {"win-bridge", windows.L2Bridge, 1}, {"win-overlay", windows.Overlay, 2}, {"win-overlay", windows.Overlay, 1}} {
		t.Run(strings.ReplaceAll(r.String(), " ", "-"), func(t *testing.T) {
			m := machine(t)
			logs(t, m)
			if err := m.StartEmulator(hns.Server2022, "--management-ip", "192.0.2.13", "--management-mac", "00-15-5D-00-00-01"); err != nil {
				t.Fatal(err)
			}
			dir := newManifests(t, "web")
			if err := m.StartAgent("win1", string(dir), "--hns-mode", string(r.mode)); err != nil {
				t.Fatal(err)
			}
			web := newInside(t, m, "web")
			dir.writePods(t, web)
			before := dumped(t, m)
			beside(t, m, r, dir, web)
			refusals(t, m, r)
			if after := dumped(t, m); !slices.Equal(endpointsIn(after), endpointsIn(before)) {
				t.Errorf("%s has left behind:\n%s\nbefore:\n%s", r, after, before)
			}
			if left := leases(t, m); len(left) > 0 {
				t.Errorf("addresses %v are still taken", left)
			}
			counted(t, "DEL", m.Delete(context.Background(), web.Pod))
		})
	}
}

// beside runs the whole life of a pod of a reference plugin, together with a pod of Isthmus.
func beside(t *testing.T, m *Machine, r reference, dir manifests, web *inside) {
	t.Helper()
	ctx := context.Background()
	list, p := r.conf(t, m, nil), newTheirs(t, m, r, "theirs")
	reported(t, r, "STATUS", m.CNI().GetStatusNetworkList(ctx, list))
	for i, c := range append(slices.Clone(p.runtime), p.runtime...) {
		result, err := m.CNI().AddNetworkList(ctx, list, c)
		reported(t, r, fmt.Sprintf("ADD %d", i+1), err)
		reported(t, r, "result", r.check(t, m, result))
	}
	for _, c := range p.runtime {
		reported(t, r, "CHECK", m.CNI().CheckNetworkList(ctx, list, c))
	}
	reported(t, r, "objects", r.installed(t, m))
	p.address = netip.MustParseAddr(firstOfTheirs)
	for _, port := range []uint16{80, 81} {
		if err := traffic.ServersFor(t).Echo(p.ns, netip.AddrPortFrom(p.address, port), model.TCP, model.UDP); err != nil {
			t.Fatal(err)
		}
	}
	at := func(p *inside, port uint16) netip.AddrPort { return netip.AddrPortFrom(p.address, port) }
	passes(t, m, web.ns, model.TCP, netip.Addr{}, at(p.inside, 80), true)
	passes(t, m, p.ns, model.UDP, netip.Addr{}, at(web, 81), true)
	dir.write(t, "policy", policy("web", firstOfTheirs+"/32", 80))
	decided(t, m, web.Pod, flow{"In", firstOfTheirs, tcp, 80, allow}, flow{"In", firstOfTheirs, tcp, 81, block})
	passes(t, m, p.ns, model.TCP, netip.Addr{}, at(web, 80), true)
	passes(t, m, p.ns, model.TCP, netip.Addr{}, at(web, 81), false)
	passes(t, m, web.ns, model.TCP, netip.Addr{}, at(p.inside, 81), true)
	slices.Reverse(p.runtime) // the sandbox goes last
	for _, c := range append(slices.Clone(p.runtime), p.runtime...) {
		reported(t, r, "DEL", m.CNI().DelNetworkList(ctx, list, c))
	}
	passes(t, m, web.ns, model.TCP, netip.Addr{}, at(p.inside, 80), false)
	if count, err := m.Control("/packets", nil); err != nil || count == "0" {
		t.Errorf("the switch has seen %q packets, %v", count, err)
	}
}

// check compares a result with the network and the configuration.
func (r reference) check(t *testing.T, m *Machine, result types.Result) error {
	t.Helper()
	got, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	gateway, mac := "10.244.3.2", ""
	if r.mode == windows.Overlay {
		gateway, mac = "10.244.3.1", "0e-2a-0a-f4-03-82" // the address, in the prefix for overlays
	}
	for _, line := range dumped(t, m) {
		if rest, ok := strings.CutPrefix(line, "  endpoint sandbox-theirs_isthmus "); ok && mac == "" {
			mac, _, _ = strings.Cut(rest, " ")
		}
	}
	if len(got.Interfaces) != 1 || got.Interfaces[0].Name != "sandbox-theirs_isthmus" || !strings.EqualFold(got.Interfaces[0].Mac, mac) {
		return fmt.Errorf("interfaces %+v, want one with %s", got.Interfaces, mac)
	}
	if len(got.IPs) != 1 || got.IPs[0].Address.String() != firstOfTheirs+"/24" || got.IPs[0].Gateway.String() != gateway {
		return fmt.Errorf("addresses %+v, want %s by %s", got.IPs, firstOfTheirs, gateway)
	}
	if !slices.Equal(got.DNS.Nameservers, []string{"10.96.0.10"}) || !slices.Equal(got.DNS.Search, []string{"svc.cluster.local"}) || got.CNIVersion != "1.1.0" {
		return fmt.Errorf("dns %+v, version %s", got.DNS, got.CNIVersion)
	}
	return nil
}

// installed compares the resolver and the policies of the endpoint, and its namespace,
// with the arguments of the plugin.
func (r reference) installed(t *testing.T, m *Machine) error {
	t.Helper()
	var have []string
	ours := false
	for _, line := range dumped(t, m) {
		if strings.HasPrefix(line, "  endpoint ") {
			if ours = strings.HasPrefix(line, "  endpoint sandbox-theirs_isthmus "); ours && !strings.HasSuffix(line, "in namespace 1") {
				return fmt.Errorf("it is not in its namespace: %s", line)
			}
		} else if ours && strings.HasPrefix(line, "    ") {
			have = append(have, canonical(strings.TrimSpace(line)))
		}
	}
	const dns = `Dns {"Search":["svc.cluster.local"],"ServerList":["10.96.0.10"]}`
	want := []string{dns, `OutBoundNAT {"Exceptions":["10.244.3.0/24"]}`, `ProviderAddress {"ProviderAddress":"192.0.2.13"}`}
	if r.mode == windows.L2Bridge {
		want = []string{dns, `L2Driver {}`, `OutBoundNAT {"Exceptions":["10.244.0.0/16"]}`, `PortMapping {"ExternalPort":8130,"InternalPort":80,"Protocol":6}`}
	}
	if !slices.Equal(have, want) {
		return fmt.Errorf("it has\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	return nil
}

// canonical returns a policy of a dump without empty members.
func canonical(policy string) string {
	kind, text, _ := strings.Cut(policy, " ")
	var settings map[string]any
	if json.Unmarshal([]byte(text), &settings) != nil {
		return policy
	}
	maps.DeleteFunc(settings, func(_ string, v any) bool { return v == "" })
	b, _ := json.Marshal(settings) // the settings were decoded from JSON
	return kind + " " + string(b)
}

// refusals checks the errors of a plugin. It must leave no objects, which the caller checks.
func refusals(t *testing.T, m *Machine, r reference) {
	t.Helper()
	ctx := context.Background()
	add := func(change map[string]any, c *libcni.RuntimeConf) error {
		_, err := m.CNI().AddNetworkList(ctx, r.conf(t, m, change), c)
		return err
	}
	p := newTheirs(t, m, r, "refused")
	sandbox := p.runtime[0]
	complains(t, r, "ADD to no network", add(map[string]any{"name": "elsewhere"}, sandbox), "elsewhere")
	other := map[windows.Mode]string{windows.L2Bridge: "win-overlay", windows.Overlay: "win-bridge"}[r.mode]
	complains(t, r, "ADD to a network of another type", add(map[string]any{"type": other}, sandbox), "unexpected type")
	lost := *sandbox
	lost.ContainerID, lost.NetNS = "sandbox-lost", "5f0b1190-63be-4e0c-b974-bd0f55675a42"
	if r.schema == 1 {
		lost.NetNS = "none" // and no such container
	}
	complains(t, r, "ADD to nowhere", add(nil, &lost), "sandbox-lost")
	reported(t, r, "DEL of what was refused", m.CNI().DelNetworkList(ctx, r.conf(t, m, nil), &lost))
	if _, err := m.Post("/fault", `{"Op":"`+map[int]string{1: "HNSCall", 2: "Create.endpoint"}[r.schema]+`","Contains":"sandbox-refused","Code":2151350285}`); err != nil {
		t.Fatal(err)
	}
	complains(t, r, "ADD while HNS refuses", add(nil, sandbox), "injected")
	if _, err := m.Control("/fault/clear", nil); err != nil {
		t.Fatal(err)
	}
	reported(t, r, "DEL of what HNS refused", m.CNI().DelNetworkList(ctx, r.conf(t, m, nil), sandbox))
}

func dumped(t *testing.T, m *Machine) []string {
	t.Helper()
	dump, err := m.Control("/dump", nil)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(dump, "\n")
}

func endpointsIn(dump []string) (all []string) {
	for _, line := range dump {
		if strings.HasPrefix(line, "  endpoint ") {
			all = append(all, line)
		}
	}
	return all
}

// leases returns the addresses that the IPAM of the reference plugins has assigned.
func leases(t *testing.T, m *Machine) (all []string) {
	t.Helper()
	files, err := os.ReadDir(m.File("ipam/isthmus"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil {
			all = append(all, f.Name())
		}
	}
	return all
}
