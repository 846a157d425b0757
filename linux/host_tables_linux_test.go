// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Flows that policy allows add entries to tables of the kernel, which all pods of a node share: a neighbour for each
// address of the segment, and a tracked connection for each flow. SECURITY.md says so.
func TestFlowsFillTablesOfTheHost(t *testing.T) {
	t.Parallel()
	l := newServiceLab(t)
	l.apply()
	const flows = 100
	l.must(l.pods["a"].Do(func() error {
		for i := range flows {
			c, err := net.Dial("udp", fmt.Sprintf("192.168.9.%d:9", 100+i))
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("x"))
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}))
	var neighbours, tracked int
	l.must(l.node.Do(func() error {
		uplink, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		known, err := netlink.NeighList(uplink.Attrs().Index, unix.AF_INET)
		if err != nil {
			return err
		}
		connections, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, c := range connections {
			if c.Forward.SrcIP.String() == "10.1.0.11" && c.Forward.DstPort == 9 {
				tracked++
			}
		}
		neighbours = len(known)
		return err
	}))
	if neighbours < flows || tracked != flows {
		t.Errorf("%d neighbours and %d tracked connections after %d flows to as many addresses: SECURITY.md says that each flow adds one of both", neighbours, tracked, flows)
	}
}
