// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// startDNS starts a server that resolves the names of servers to the addresses of their Services, or of their pods if these are
// headless. It ends with the test.
func (k *kubelets) startDNS(at netip.Addr) {
	ns, _ := k.cluster.Outside()
	var packets net.PacketConn
	err := ns.Do(func() (err error) {
		packets, err = net.ListenPacket("udp", netip.AddrPortFrom(at, 53).String())
		return err
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { packets.Close() })
	go func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Header.Response, m.Additionals = true, nil
			k.answer(&m)
			if text, err := m.Pack(); err == nil {
				_, _ = packets.WriteTo(text, from) // the client repeats the query
			}
		}
	}()
}

// answer adds the records of a name.
func (k *kubelets) answer(m *dnsmessage.Message) {
	q := m.Questions[0]
	name, rest, _ := strings.Cut(q.Name.String(), ".")
	if rest != "svc.cluster.local." || !strings.HasPrefix(name, "server-") {
		m.Header.RCode = dnsmessage.RCodeNameError
		return
	}
	all := addresses(name)
	if !k.services {
		all = nil
		k.mu.Lock()
		for _, p := range k.pods {
			if p.Name == name {
				all = p.IPs
			}
		}
		k.mu.Unlock()
	}
	for _, a := range all {
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
}
