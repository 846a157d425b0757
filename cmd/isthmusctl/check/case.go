// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
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
	// by is the Service, or the node, that the client calls; to is then one of its backends, and forwarded is the connection to it.
	by        string
	forwarded *service.Connection
}

// String names the flow, and the Service or node that it calls.
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
		to, port, err := q.service(s, all)
		if err == nil && to.Service == nil {
			if err := q.resolve(s, owners); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", where(q.at, c.at), c.title, err)
			}
			q.hostPort(s, all)
			queries = append(queries, q)
			if other, ok := q.otherFamily(s); ok && c.complete {
				queries = append(queries, other)
			}
			continue
		}
		var ports []model.ServicePort
		if err == nil {
			ports, err = service.Port(to.Service, port, &q.protocol)
		}
		from, wrong := addresses(s, q.from, c.complete)
		if wrong != nil {
			return nil, fmt.Errorf("%s: %s: from: %w", where(q.at, c.at), c.title, wrong)
		}
		for _, port := range ports {
			var found []service.Connection
			if found, err = all.Connections(to, port, from); err != nil {
				break
			}
			for _, f := range found {
				one := q
				one.by, one.to, one.port, one.portName, one.forwarded = q.to, f.Backend.Name, f.Backend.Port, "", &f
				queries = append(queries, one)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: to: %w", where(q.at, c.at), c.title, err)
		}
	}
	return queries, nil
}

// service returns the call of a Service, or of a port of a node that leads to one, and the port of the Service. There is none if
// the query calls anything else.
func (q testQuery) service(s *model.Snapshot, all *service.Services) (to service.Call, port string, err error) {
	if port = q.portName; port == "" {
		port = fmt.Sprint(q.port)
	}
	if to, err = serviceOf(q.to, port, q.protocol, all); err != nil || to.Service != nil || q.portName != "" {
		return to, port, err
	}
	at, _, ok := cluster.OfNode(s, q.from, q.to, q.protocol, fmt.Sprint(q.port))
	if !ok {
		return to, port, nil
	}
	to, of := all.AtNode(at.Addr(), q.protocol, q.port)
	return to, fmt.Sprint(of.Port), nil
}

// otherFamily returns the query for the other family of ends that have addresses of both. Policies that name addresses may
// decide differently there.
func (q testQuery) otherFamily(s *model.Snapshot) (testQuery, bool) {
	first, err := q.flow(s, true)
	if err != nil || q.forwarded != nil {
		return q, false
	}
	other, ok := ends.OtherFamily(s, q.from, q.to, first)
	q.from, q.to = cluster.EndAt(q.from, other.Src), cluster.EndAt(q.to, other.Dst)
	return q, ok
}

// hostPort replaces a port of a node that leads to a pod by the connection to that pod.
func (q *testQuery) hostPort(s *model.Snapshot, all *service.Services) {
	at, from, ok := cluster.OfNode(s, q.from, q.to, q.protocol, fmt.Sprint(q.port))
	if !ok {
		return
	}
	if c, ok := all.HostPort(at, q.protocol, from); ok {
		q.by, q.to, q.port, q.forwarded = q.to, c.Backend.Name, c.Backend.Port, &c
	}
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

// serviceOf returns the call of the Service that an end names, by svc/NAMESPACE/NAME or an address. There may be none.
func serviceOf(end, port string, protocol model.Protocol, all *service.Services) (service.Call, error) {
	if a, err := netip.ParseAddr(strings.TrimPrefix(end, "ip:")); err == nil {
		s, err := all.Called(a.Unmap(), port, &protocol)
		return service.Call{Service: s, To: a.Unmap()}, err
	}
	rest, ok := strings.CutPrefix(end, "svc/")
	if !ok {
		return service.Call{}, nil
	}
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		return service.Call{}, fmt.Errorf("%q: give svc/NAMESPACE/NAME", end)
	}
	s := all.Named(namespace, name)
	if s == nil {
		return service.Call{}, fmt.Errorf("no Service %s among the objects: add it, or name another", rest)
	}
	return service.Call{Service: s}, nil
}

// flow resolves the ends of the query in a cluster. Of a pod or node with several addresses
// it takes the first; fit replaces it by the address of the family of the other end.
func (q testQuery) flow(s *model.Snapshot, fit bool) (model.Flow, error) {
	f := model.Flow{Protocol: q.protocol, Port: q.port}
	src, err := addresses(s, q.from, fit)
	if err != nil {
		return f, fmt.Errorf("from: %w", err)
	}
	dst, err := addresses(s, q.to, fit)
	if err != nil {
		return f, fmt.Errorf("to: %w", err)
	}
	f.Src, f.Dst = src[0], dst[0]
	if fit {
		f.Src, f.Dst, err = ends.SameFamily(src, dst, q.protocol)
	}
	return f, err
}

// addresses returns those of an end. Generated cases take pods as they are; in others an end must be a pod that has not finished.
func addresses(s *model.Snapshot, end string, complete bool) ([]netip.Addr, error) {
	if complete {
		return ends.InUse(s, end)
	}
	return ends.Addresses(s, end)
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
