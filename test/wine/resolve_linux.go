// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Resolver returns the DNS settings that HNS has for an HCN namespace.
func (m *Machine) Resolver(namespace string) (d hns.DNS, _ error) {
	text, err := m.Control("/resolver", url.Values{"namespace": {namespace}})
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal([]byte(text), &d)
}

// Resolve asks for the IPv4 addresses of a name from within a pod: its network namespace, and its HCN namespace. It uses only
// the servers and search domains that HNS has for the pod: as on Windows, a name with a dot is tried unchanged first.
func (m *Machine) Resolve(ctx context.Context, ns *netns.NS, namespace, name string) ([]netip.Addr, error) {
	d, err := m.Resolver(namespace)
	if err != nil {
		return nil, err
	}
	if len(d.ServerList) == 0 {
		return nil, errors.New("HNS has no DNS servers for the pod")
	}
	var names []string
	for _, s := range d.Search {
		names = append(names, name+"."+s)
	}
	if strings.Contains(name, ".") {
		names = slices.Insert(names, 0, name)
	}
	var errs []error
	for _, full := range names {
		found, err := lookUp(ctx, ns, d.ServerList[0], full)
		if err == nil {
			return found, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// lookUp asks one server for one name from within a namespace.
func lookUp(ctx context.Context, ns *netns.NS, server, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
			return err
		})
		return conn, err
	}}
	return r.LookupNetIP(ctx, "ip4", name+".")
}
