// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// fromNamespace is a NetworkPolicy that lets pods of the namespace reach the DNS server; %s selects them.
const fromNamespace = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: dns, namespace: shop}
spec: {podSelector: {matchLabels: {app: dns}}, ingress: [{from: [{podSelector: {%s}}], ports: [{port: 53, protocol: UDP}]}]}
`

// TestNamesAndPool gives pods prepared endpoints. They resolve names at a DNS server in a pod, with the settings that HNS has for
// them, and call what the names lead to, all under policy.
func TestNamesAndPool(t *testing.T) {
	const size = 8
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "dns", "first", "web", "client", "db")
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80)+"---\n"+fmt.Sprintf(fromNamespace, ""))
	if err := m.StartAgent("win1", string(dir), "--endpoint-pool", fmt.Sprint(size)); err != nil {
		t.Fatal(err)
	}
	server := newInside(t, m, "dns")
	settings := &DNS{Servers: []string{server.address.String()}, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}, Options: []string{"ndots:5"}}
	first := newResolving(t, m, "first", settings)
	await(t, "the pool to fill", func() bool { return m.metric(`isthmus_endpoint_pool{state="ready"}`) == size })

	pods := []*inside{first}
	for _, name := range []string{"web", "client", "db"} {
		p := newResolving(t, m, name, settings)
		p.prepared = endpointAt(t, m, p.address)
		pods = append(pods, p)
	}
	web, client := pods[1], pods[2]
	decided(t, m, web.Pod, flow{"In", "10.1.2.3", tcp, 80, allow}, flow{"In", "10.2.2.3", tcp, 80, block})
	await(t, "three pods to be counted", func() bool { return m.metric(`isthmus_endpoint_pool_adds_total{result="hit"}`) >= 3 })
	served := int(m.metric(`isthmus_endpoint_pool_adds_total{result="hit"}`))
	if served != 3 {
		t.Errorf("%d pods got a prepared endpoint, want 3", served)
	}
	shared.mu.Lock()
	shared.pool += served
	shared.mu.Unlock()
	for _, p := range pods {
		sameSettings(t, m, p)
	}
	dir.writePods(t, append(pods, server)...)
	dir.write(t, "policy", policy("web", client.address.String()+"/32", 80)+"---\n"+fmt.Sprintf(fromNamespace, ""))
	if err := traffic.ServersFor(t).UDP(server.ns, netip.AddrPortFrom(server.address, 53), answer(map[string]netip.Addr{
		"web.shop.svc.cluster.local.": web.address, "db.shop.svc.cluster.local.": pods[3].address})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "web.shop", "web.shop.svc.cluster.local"} {
		resolved(t, m, client, name, web.address)
	}
	resolved(t, m, web, "db", pods[3].address)
	resolved(t, m, client, "missing", netip.Addr{})
	passes(t, m, client.ns, model.TCP, netip.Addr{}, netip.AddrPortFrom(web.address, 80), true)
	passes(t, m, pods[3].ns, model.TCP, netip.Addr{}, netip.AddrPortFrom(web.address, 80), false)

	// A pod that may not ask resolves nothing, and Windows says why.
	dir.write(t, "policy", fmt.Sprintf(fromNamespace, "matchLabels: {app: web}"))
	decided(t, m, server.Pod, flow{"In", client.address.String(), udp, 53, block}, flow{"In", web.address.String(), udp, 53, allow})
	resolved(t, m, web, "db", pods[3].address)
	if found, err := m.Resolve(context.Background(), client.ns, client.NetNS, "web"); err == nil {
		t.Errorf("a pod that may not ask resolves web to %v", found)
	}
	explained(t, m, func() {}, fmt.Sprintf("%s (shop/client) -> %s UDP/53: isolated for ingress by NetworkPolicy shop/dns, no rule accepts", client.address, server.address))
	for _, p := range append(pods, server) {
		counted(t, "DEL", m.Delete(context.Background(), p.Pod))
	}
	countPackets(t, m)
}

// endpointAt returns the name of the endpoint with an address.
func endpointAt(t *testing.T, m *Machine, address netip.Addr) string {
	t.Helper()
	for _, line := range endpointsIn(dumped(t, m)) {
		if words := strings.Fields(line); strings.Contains(line, "[{"+address.String()+" ") {
			return words[1]
		}
	}
	t.Fatalf("no endpoint has the address %s", address)
	return ""
}

// sameSettings compares the DNS settings that HNS has for a pod with those of its ADD.
func sameSettings(t *testing.T, m *Machine, p *inside) {
	t.Helper()
	got, err := m.Resolver(p.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	for what, lists := range map[string][2][]string{"servers": {got.ServerList, p.DNS.Servers}, "search domains": {got.Search, p.DNS.Searches}, "options": {got.Options, p.DNS.Options}} {
		if !slices.Equal(lists[0], lists[1]) {
			t.Errorf("pod %s has DNS %s %q, want %q", p.Name, what, lists[0], lists[1])
			continue
		}
		shared.mu.Lock()
		shared.dns++
		shared.mu.Unlock()
	}
}

// resolved checks what a name leads to in a pod; the zero address stands for a name that does not exist.
func resolved(t *testing.T, m *Machine, p *inside, name string, want netip.Addr) {
	t.Helper()
	var found []netip.Addr
	var err error
	for deadline := time.Now().Add(patience / 3); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		found, err = m.Resolve(context.Background(), p.ns, p.NetNS, name)
		var missing *net.DNSError
		if want.IsValid() && err == nil && slices.Equal(found, []netip.Addr{want}) || !want.IsValid() && errors.As(err, &missing) && missing.IsNotFound {
			shared.mu.Lock()
			defer shared.mu.Unlock()
			shared.dns++
			return
		}
	}
	t.Errorf("%s resolves to %v (%v) in pod %s, want %s", name, found, err, p.Name, want)
}

// answer returns a DNS server that knows some names.
func answer(names map[string]netip.Addr) func(netip.AddrPort, []byte) []byte {
	return func(_ netip.AddrPort, request []byte) []byte {
		var q dnsmessage.Message
		if q.Unpack(request) != nil || len(q.Questions) != 1 {
			return nil
		}
		to := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, Authoritative: true, RecursionDesired: q.RecursionDesired}, Questions: q.Questions}
		asked := q.Questions[0]
		a, known := names[strings.ToLower(asked.Name.String())]
		switch {
		case !known:
			to.RCode = dnsmessage.RCodeNameError
		case asked.Type == dnsmessage.TypeA:
			to.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: asked.Class, TTL: 5}, Body: &dnsmessage.AResource{A: a.As4()}}}
		}
		text, err := to.Pack()
		if err != nil {
			return nil
		}
		return text
	}
}
