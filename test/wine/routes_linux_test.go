// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestHostRoutes reads and changes the routing table and the forwarding flags of a
// host with the API of Windows, by iphlpapi-more.dll: Wine's own cannot write.
func TestHostRoutes(t *testing.T) {
	m := machine(t)
	logs(t, m)
	const name = "routes"
	ns := netns.ForTest(t)
	if err := netns.Connect(netns.End{NS: m.NS, Name: name, Index: routesIndex}, netns.End{NS: ns, Name: name}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.NS.Do(func() error { return netns.Remove(name) }) })
	if err := m.NS.Do(func() error {
		if err := netns.AddAddresses(name, netip.MustParsePrefix("192.0.2.13/24"), netip.MustParsePrefix("fd00:2::13/64")); err != nil {
			return err
		}
		return netns.Route(netip.MustParsePrefix("169.254.169.254/32"), netip.MustParseAddr("192.0.2.14"))
	}); err != nil {
		t.Fatal(err)
	}
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	defer m.StopEmulator()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	exe := m.File("hostroute.test.exe")
	if err := goTool(ctx, "../..", "windows", "test", "-c", "-o", exe, "./windows/hostroute"); err != nil {
		t.Fatal(err)
	}
	cmd := m.Command(ctx, exe, "-test.v", "-test.run", "^TestSystem$")
	cmd.Env = append(cmd.Env, "ISTHMUS_ROUTE=169.254.169.254/32")
	out, err := m.Output(cmd)
	if err != nil || !strings.Contains(out, "192.0.2.14") {
		t.Errorf("%v\n%s", err, out)
	}
	for to, via := range map[string]string{"198.51.100.0/24": "192.0.2.14", "fd00:9::/64": "fd00:2::14"} {
		cmd := m.Command(ctx, exe, "-test.v", "-test.run", "^TestSystemWrites$")
		cmd.Env = append(cmd.Env, "ISTHMUS_WRITE="+to, "ISTHMUS_VIA="+via)
		if out, err := m.Output(cmd); err != nil || !strings.Contains(out, "--- PASS: TestSystemWrites") {
			t.Errorf("%s: %v\n%s", to, err, out)
		}
	}
}
