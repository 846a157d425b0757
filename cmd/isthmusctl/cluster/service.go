// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
)

// Service returns the call of the Service that a destination names, as svc/NAMESPACE/NAME or by an address. It has no Service if
// the destination names none. A name without a namespace is in the given one, or else in that of the pod at the other end. port
// and protocol are as of service.Port: they distinguish Services that share an address.
func Service(all *service.Services, from, to, namespace, port string, protocol *model.Protocol) (service.Call, error) {
	if a, err := netip.ParseAddr(to); err == nil {
		s, err := all.Called(a.Unmap(), port, protocol)
		return service.Call{Service: s, To: a.Unmap()}, err
	}
	kind, rest, _ := strings.Cut(to, "/")
	if !IsServiceKind(kind) {
		return service.Call{}, nil
	}
	of, name, ok := strings.Cut(rest, "/")
	if !ok {
		of, name = namespace, rest
		if of == "" {
			pod, _, _ := strings.Cut(from, "@")
			of, _, _ = strings.Cut(pod, "/")
			if !strings.Contains(pod, "/") {
				return service.Call{}, cli.Usagef("%q: give svc/NAMESPACE/%s, or the namespace with --namespace", to, name)
			}
		}
	}
	s, err := NamedService(all, of, name)
	return service.Call{Service: s}, err
}

// OfNode returns the address and port of a node that a client calls, and the client's addresses. ok is false for another destination,
// and for a flow with an error, which Flow finds, too.
func OfNode(s *model.Snapshot, from, to string, protocol model.Protocol, port string) (at netip.AddrPort, client []netip.Addr, ok bool) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strings.Contains(strings.TrimPrefix(to, "node:"), "/") {
		return at, nil, false
	}
	client, err = ends.Addresses(s, from)
	if err != nil {
		return at, nil, false
	}
	addresses, err := ends.Addresses(s, to)
	if err != nil {
		return at, nil, false
	}
	_, a, err := ends.SameFamily(client, addresses, protocol)
	return netip.AddrPortFrom(a, uint16(n)), client, err == nil
}

// Ports selects ports of a Service, as service.Port. Errors name the flag.
func Ports(s *model.Service, text string, protocol *model.Protocol) ([]model.ServicePort, error) {
	ports, err := service.Port(s, text, protocol)
	switch {
	case err == nil:
		return ports, nil
	case s.ExternalName != "":
		return nil, cli.Usagef("--to: %w", err)
	case text == "":
		return nil, cli.Usagef("--port: %w", err)
	}
	return nil, cli.Usagef("--port %q: %w", text, err)
}

// IsServiceKind reports whether a word is one that kubectl takes for Services.
func IsServiceKind(word string) bool {
	return slices.Contains([]string{"svc", "service", "services"}, word)
}

// NamedService returns a Service, or an error that suggests others of its namespace.
func NamedService(all *service.Services, namespace, name string) (*model.Service, error) {
	if s := all.Named(namespace, name); s != nil {
		return s, nil
	}
	if before, port, ok := strings.Cut(name, ":"); ok {
		return nil, cli.Usagef("\"svc/%s/%s\": give svc/%s/%s here, and the port %s on its own", namespace, name, namespace, before, port)
	}
	known := all.Names(namespace)
	if len(known) == 0 {
		return nil, fmt.Errorf("no Service %s/%s: namespace %s has no Services that are known", namespace, name, namespace)
	}
	return nil, fmt.Errorf("no Service %s/%s: namespace %s has %s", namespace, name, namespace, cli.Shorten(known, 5))
}
