// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// memory is an IP stack with one interface.
type memory struct {
	routes     []hostroute.Route
	forwarding [2]bool
}

func (m *memory) Routes() ([]hostroute.Route, error) { return m.routes, nil }
func (m *memory) Add(r hostroute.Route) error        { m.routes = append(m.routes, r); return nil }
func (m *memory) Remove(hostroute.Route) error       { m.routes = nil; return nil }
func (m *memory) SetForwarding(_ uint32, f hostroute.Family, on bool) error {
	m.forwarding[f] = on
	return nil
}
func (m *memory) Interfaces() ([]hostroute.Interface, error) {
	return []hostroute.Interface{{Index: 7, MTU: 1500, Forwarding: m.forwarding}}, nil
}

// TestStack makes the calls of iphlpapi-more.dll.
func TestStack(t *testing.T) {
	m := &memory{}
	s := New(Config{Stack: m})
	do := func(op, words string) string {
		a := s.Do("client", Call{Op: op, Args: [3]string{words}})
		if a.Error != nil {
			return *a.Error
		}
		if a.Output == nil {
			return ""
		}
		return *a.Output
	}
	for _, c := range []struct{ op, words, want string }{
		{"Add.stack", "10.0.2.0 24 192.168.0.2 7 7300", ""},
		{"Routes.stack", "4", "10.0.2.0 24 192.168.0.2 7 7300 0\n"},
		{"Routes.stack", "6", ""},
		{"Get.stack", "7 6", "0 1500"},
		{"Set.stack", "7 6 1", ""},
		{"Get.stack", "7 6", "1 1500"},
		{"Get.stack", "7 4", "0 1500"},
		{"Get.stack", "8 4", "Element not found"},
		{"Get.stack", "7", "want INDEX FAMILY"},
		{"Add.stack", "10.0.2.0 24", "route"},
	} {
		if got := do(c.op, c.words); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s %q: %q, want %q", c.op, c.words, got, c.want)
		}
	}
	if r := m.routes[0]; r.Destination != netip.MustParsePrefix("10.0.2.0/24") || r.Metric != 7300 || r.Interface != 7 {
		t.Errorf("%+v", r)
	}
}
