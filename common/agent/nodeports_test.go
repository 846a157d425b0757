// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// addWithPort attaches pod n with a TCP host port.
func (r *rig) addWithPort(n int, hostIP string, port uint32) error {
	q := addRequest(n)
	q.HostPorts = []cniframe.HostPort{{HostIP: hostIP, HostPort: port, Port: 80, Protocol: uint32(model.TCP)}}
	_, err := r.agent.Add(context.Background(), q)
	return err
}

// TestPortsOfTheNode keeps pods from ports that the node uses.
func TestPortsOfTheNode(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		features := linux
		features.HostPorts = true
		r.fake = dataplanetest.NewFake(features)
		r.change = func(c *agent.Config) {
			c.ReservedHostPorts = []agent.PortRange{{First: 6443, Last: 6443}, {First: 10248, Last: 10250}}
		}
		socket := func(address string, p model.Protocol, number uint16) model.HostPort {
			h := model.HostPort{Protocol: p, Number: number}
			if address != "" {
				h.Address = netip.MustParseAddr(address)
			}
			return h
		}
		r.fake.SetSockets(socket("", model.TCP, 22), socket("192.168.0.1", model.TCP, 9100), socket("127.0.0.53", model.TCP, 53), socket("", model.UDP, 8080))
		r.start()
		r.agent.Publish(cluster{pods: 9}.snapshot())
		for port, text := range map[uint32]string{
			6443:  "host port TCP 6443 of pod shop/web-0 is reserved for node node1: give the pod another hostPort, or remove this one from --reserved-host-ports",
			10248: "host port TCP 10248 of pod shop/web-0 is reserved",
			10250: "host port TCP 10250 of pod shop/web-0 is reserved",
		} {
			wantCode(t, r.addWithPort(0, "", port), 101, text)
		}
		for port, text := range map[uint32]string{
			22:   "host port TCP 22 of pod shop/web-0: a process of node node1 listens on TCP 22: stop that process, give the pod another hostPort, or limit it to another address by hostIP",
			9100: "a process of node node1 listens on TCP 192.168.0.1:9100",
		} {
			wantCode(t, r.addWithPort(0, "", port), 11, text)
		}
		wantCode(t, r.addWithPort(0, "127.0.0.53", 53), 11, "listens on TCP 127.0.0.53:53")
		r.wantOnly()
		for n, c := range []struct {
			hostIP string
			port   uint32
		}{{"", 10251}, {"", 10247}, {"", 53}, {"", 8080}, {"192.168.0.2", 9100}} {
			if err := r.addWithPort(n, c.hostIP, c.port); err != nil {
				t.Errorf("host port %s %d: %v", c.hostIP, c.port, err)
			}
		}
		// Existing attachments stay, even if another process listens there now.
		r.fake.SetSockets(socket("", model.TCP, 10251))
		if err := r.addWithPort(0, "", 10251); err != nil {
			t.Errorf("ADD again: %v", err)
		}
		r.end()
		r.start()
		r.agent.Publish(cluster{pods: 9}.snapshot())
		r.settle()
		r.wantOnly(0, 1, 2, 3, 4)
		r.end()
	})
}

// TestPortsOfServices keeps pods from ports of Services where the data path could not tell them apart. Attached pods stay.
func TestPortsOfServices(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		features := linux
		features.HostPorts = true
		r.fake = dataplanetest.NewFake(features)
		r.start()
		r.agent.Publish(cluster{pods: 9}.snapshot())
		if err := r.addWithPort(0, "", 30080); err != nil {
			t.Fatal(err)
		}
		r.fake.SetServicePorts(model.HostPort{Protocol: model.TCP, Number: 30080, Address: netip.IPv4Unspecified()},
			model.HostPort{Protocol: model.TCP, Number: 443, Address: netip.MustParseAddr("192.168.0.1")})
		if err := r.addWithPort(0, "", 30080); err != nil {
			t.Errorf("ADD again: %v", err)
		}
		const text = "host port TCP 443 of pod shop/web-1: a Service has TCP 192.168.0.1:443 on node node1: give the pod another hostPort, or limit it to another address by hostIP"
		wantCode(t, r.addWithPort(1, "", 443), 11, text)
		wantCode(t, r.addWithPort(1, "192.168.0.1", 443), 11, "a Service has TCP 192.168.0.1:443")
		r.end()
		r.start() // the first pod stays, and another may not have its port
		r.agent.Publish(cluster{pods: 9}.snapshot())
		r.settle()
		r.wantOnly(0)
		for n, hostIP := range []string{"192.168.0.2", "fd00::1"} {
			if err := r.addWithPort(n+1, hostIP, 443); err != nil {
				t.Errorf("host port %s: %v", hostIP, err)
			}
		}
		r.fake.FailServicePorts(errors.New("hns is gone"))
		wantCode(t, r.addWithPort(3, "", 8080), 103, "hns is gone")
		r.end()
	})
}

func TestParsePortRange(t *testing.T) {
	for text, want := range map[string]agent.PortRange{"1": {First: 1, Last: 1}, "65535": {First: 65535, Last: 65535}, "2379-2381": {First: 2379, Last: 2381}, "7-7": {First: 7, Last: 7}} {
		if got, err := agent.ParsePortRange(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "65536", "-1", "1-", "9-8", "0-9", "a", "1-2-3", " 1"} {
		if got, err := agent.ParsePortRange(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
