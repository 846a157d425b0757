// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
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
	want     model.Verdict
}

func (q testQuery) String() string {
	if !q.protocol.HasPorts() {
		return fmt.Sprintf("%s -> %s %s", q.from, q.to, q.protocol)
	}
	return fmt.Sprintf("%s -> %s %s/%d", q.from, q.to, q.protocol, q.port)
}

// flow resolves the ends of the query in a cluster. Of a pod or node with several addresses
// it takes the first; fit replaces it by the address of the family of the other end.
func (q testQuery) flow(s *model.Snapshot, fit bool) (model.Flow, error) {
	f := model.Flow{Protocol: q.protocol, Port: q.port}
	src, err := cluster.Addresses(s, q.from)
	if err != nil {
		return f, fmt.Errorf("from: %w", err)
	}
	dst, err := cluster.Addresses(s, q.to)
	if err != nil {
		return f, fmt.Errorf("to: %w", err)
	}
	f.Src, f.Dst = src[0], dst[0]
	if fit {
		f.Src, f.Dst, err = cluster.SameFamily(src, dst, q.protocol)
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
