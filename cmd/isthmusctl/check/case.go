// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// testCase is one of three: a cluster with queries, an object with the answer of the API
// server, or the error of a file.
type testCase struct {
	number int // in the order of the files
	// at is "file:line"; title is the name and the source of the case.
	at, title string
	// files are the manifests of the cluster.
	files []manifests.File
	// complete adds nodes and addresses to pods that have none.
	complete   bool
	queries    []testQuery
	validation *validation
	warnings   []string
	bad        error
}

// testQuery is one query.
type testQuery struct {
	at       string // "file:line"; the case's if empty
	from, to string
	protocol model.Protocol
	port     uint16
	// portName is the name that a file has instead of a number; backends replaces it.
	portName string
	want     model.Verdict
	// by is the Service that the client calls; to is then one of its backends.
	by string
}

// String names the flow, and the Service that it calls.
func (q testQuery) String() string {
	if q.by != "" {
		return fmt.Sprintf("%s -> %s by %s %s/%d", q.from, q.to, q.by, q.protocol, q.port)
	}
	if !q.protocol.HasPorts() {
		return fmt.Sprintf("%s -> %s %s", q.from, q.to, q.protocol)
	}
	return fmt.Sprintf("%s -> %s %s/%d", q.from, q.to, q.protocol, q.port)
}

// backends replaces each query to a Service by one for each of its backends, all with the wanted verdict. It replaces names
// of ports by numbers.
func backends(c *testCase, s *model.Snapshot, all *service.Services) ([]testQuery, error) {
	var queries []testQuery
	owners := sync.OnceValue(s.Owners)
	for _, q := range c.queries {
		to, err := serviceOf(q.to, all)
		port := q.portName
		if port == "" {
			port = fmt.Sprint(q.port)
		}
		var node, client netip.Addr
		if err == nil && to == nil && q.portName == "" {
			to, port, node, client = q.byNodePort(s, all)
		}
		if err == nil && to == nil {
			if err := q.resolve(s, owners); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", where(q.at, c.at), c.title, err)
			}
			queries = append(queries, q)
			continue
		}
		var ports []model.ServicePort
		if err == nil {
			ports, err = service.Port(to, port, &q.protocol)
		}
		for _, port := range ports {
			var found []service.Backend
			if found, err = all.Backends(to, port); err != nil {
				break
			}
			if found, err = q.forwarded(s, all, to, node, client, found); err != nil {
				break
			}
			for _, b := range found {
				one := q
				one.by, one.to, one.port, one.portName = q.to, b.Name, b.Port, ""
				queries = append(queries, one)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: to: %w", where(q.at, c.at), c.title, err)
		}
	}
	return queries, nil
}

// forwarded returns those backends to which nodes forward the client, by a port of a node if that is set.
func (q testQuery) forwarded(s *model.Snapshot, all *service.Services, to *model.Service, node, client netip.Addr, found []service.Backend) ([]service.Backend, error) {
	if node.IsValid() {
		if found = all.ByNode(to, node, client, found); len(found) == 0 {
			return nil, fmt.Errorf("no backend of Service %s/%s on this node, and externalTrafficPolicy is Local", to.Namespace, to.Name)
		}
		return found, nil
	}
	from, err := ends.Addresses(s, q.from)
	if err != nil {
		return found, nil // the flows to the backends report it
	}
	called, _ := netip.ParseAddr(strings.TrimPrefix(q.to, "ip:"))
	if found = all.ByClient(to, called.Unmap(), from[0], found); len(found) == 0 {
		return nil, fmt.Errorf("no backend of Service %s/%s: internalTrafficPolicy is Local, and none is on the node of the client", to.Namespace, to.Name)
	}
	return found, nil
}

// byNodePort returns the Service that the query calls by a port of a node, the port of the Service, and the addresses of
// the node and of the client. The Service is nil if there is none.
func (q testQuery) byNodePort(s *model.Snapshot, all *service.Services) (to *model.Service, port string, node, client netip.Addr) {
	at, err := ends.Addresses(s, q.to)
	from, wrong := ends.Addresses(s, q.from)
	if err != nil || wrong != nil || strings.Contains(strings.TrimPrefix(q.to, "node:"), "/") {
		return nil, "", node, client // asking about the flow finds it, too
	}
	to, of := all.AtNode(at[0], q.protocol, q.port)
	return to, fmt.Sprint(of.Port), at[0], from[0]
}

// resolve replaces the name of a port by the number that it has in the destination pod.
func (q *testQuery) resolve(s *model.Snapshot, owners func() model.Owners) error {
	if q.portName == "" {
		return nil
	}
	at, err := ends.Addresses(s, q.to)
	if err != nil {
		return fmt.Errorf("to: %w", err)
	}
	if q.port, err = ends.Port(q.portName, q.protocol, owners().Pods[at[0]]); err != nil {
		return fmt.Errorf("port: %w", err)
	}
	q.portName = ""
	return nil
}

// serviceOf returns the Service that an end names, by svc/NAMESPACE/NAME or an address, or nil.
func serviceOf(end string, all *service.Services) (*model.Service, error) {
	if a, err := netip.ParseAddr(strings.TrimPrefix(end, "ip:")); err == nil {
		return all.At(a.Unmap()), nil
	}
	rest, ok := strings.CutPrefix(end, "svc/")
	if !ok {
		return nil, nil
	}
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		return nil, fmt.Errorf("%q: give svc/NAMESPACE/NAME", end)
	}
	s := all.Named(namespace, name)
	if s == nil {
		return nil, fmt.Errorf("no Service %s among the objects: add it, or name another", rest)
	}
	return s, nil
}

// flow resolves the ends of the query in a cluster. Of a pod or node with several addresses
// it takes the first; fit replaces it by the address of the family of the other end.
func (q testQuery) flow(s *model.Snapshot, fit bool) (model.Flow, error) {
	f := model.Flow{Protocol: q.protocol, Port: q.port}
	src, err := ends.Addresses(s, q.from)
	if err != nil {
		return f, fmt.Errorf("from: %w", err)
	}
	dst, err := ends.Addresses(s, q.to)
	if err != nil {
		return f, fmt.Errorf("to: %w", err)
	}
	f.Src, f.Dst = src[0], dst[0]
	if fit {
		f.Src, f.Dst, err = ends.SameFamily(src, dst, q.protocol)
	}
	return f, err
}

// protocolAndPort reads the protocol and the port of a query. Protocols without ports have
// none.
func protocolAndPort(protocol string, port *int) (model.Protocol, uint16, error) {
	p := model.TCP
	if protocol != "" {
		var err error
		if p, err = model.ParseProtocol(protocol); err != nil {
			return 0, 0, err
		}
	}
	switch {
	case port == nil && p.HasPorts():
		return 0, 0, fmt.Errorf("port: missing: give the destination port, 0 to 65535")
	case port == nil:
		return p, 0, nil
	case *port < 0 || *port > 65535:
		return 0, 0, fmt.Errorf("port: %d: give the destination port, 0 to 65535", *port)
	case *port != 0 && !p.HasPorts():
		return 0, 0, fmt.Errorf("port: %d: %s has no ports: remove the field", *port, p)
	}
	return p, uint16(*port), nil
}

func verdict(text string) (model.Verdict, error) {
	switch strings.ToLower(text) {
	case "allow":
		return model.Allow, nil
	case "deny":
		return model.Deny, nil
	}
	return model.Deny, fmt.Errorf("want: %q: give allow or deny", text)
}
