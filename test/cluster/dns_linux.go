// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// DNSAddress is the address of the Service kube-dns, which kubelets give to pods.
const DNSAddress = "10.96.0.10"

// clusterFirst is what a kubelet passes for pods of a namespace with the default
// dnsPolicy.
func clusterFirst(namespace string) map[string][]string {
	return map[string][]string{"servers": {DNSAddress}, "options": {"ndots:5"},
		"searches": {namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local"}}
}

// Resolver is what HNS has for containers of a pod on Windows: Wine's nodes only.
func (p *Pod) Resolver(ctx context.Context) (d hns.DNS, err error) {
	text, err := p.Node.ask(ctx, "/resolver", url.Values{"namespace": {p.netnsPath}})
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal([]byte(text), &d)
}

// Resolve asks for the IPv4 addresses of a name from within a pod on Windows. It
// uses the servers and search domains that HNS has for the pod, and nothing else:
// a name with a dot is tried as it is first, as Windows does.
func (p *Pod) Resolve(ctx context.Context, name string, patience time.Duration) ([]netip.Addr, error) {
	d, err := p.Resolver(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range d.Search {
		names = append(names, name+"."+s)
	}
	if strings.Contains(name, ".") {
		names = slices.Insert(names, 0, name)
	}
	if len(d.ServerList) == 0 {
		return nil, fmt.Errorf("resolve %s from %s: HNS has no DNS servers for it", name, p.PodID)
	}
	var errs []error
	for _, full := range names {
		for _, server := range d.ServerList {
			found, err := p.lookUp(ctx, server, full, patience)
			var missing *net.DNSError
			if err == nil {
				return found, nil
			}
			errs = append(errs, err)
			if errors.As(err, &missing) && missing.IsNotFound {
				break // the server has answered
			}
		}
	}
	return nil, fmt.Errorf("resolve %s from %s: %w", name, p.PodID, errors.Join(errs...))
}

// lookUp asks one server for one name.
func (p *Pod) lookUp(ctx context.Context, server, name string, patience time.Duration) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		err = p.NS.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
			return err
		})
		return conn, err
	}}
	return r.LookupNetIP(ctx, "ip4", name+".")
}
