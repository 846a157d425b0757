// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// The kinds of objects.
const (
	networks   = "network"
	endpoints  = "endpoint"
	namespaces = "namespace"
	balancers  = "loadbalancer"
	routes     = "sdnroute"
	lists      = "policylist" // of schema 1 only
)

// get returns an object in the form of schema 2.
func (s *Service) get(kind, id string) (any, error) {
	ctx := context.Background()
	switch kind {
	case networks:
		return s.config.HNS.Network(ctx, id)
	case endpoints:
		return s.config.HNS.Endpoint(ctx, id)
	case namespaces:
		return s.config.HNS.Namespace(ctx, id)
	}
	return s.extra.get(kind, id)
}

// enumerate returns the IDs of the objects that match a query.
func (s *Service) enumerate(kind, query string) (Answer, error) {
	filter, err := parseQuery(query)
	if err != nil {
		return Answer{}, err
	}
	all, err := s.all(kind)
	if err != nil {
		return Answer{}, err
	}
	ids := []string{}
	for _, o := range all {
		if o.matches(filter) || s.config.HNS.Has(hnstest.BugFilterIgnored) {
			ids = append(ids, o["ID"])
		}
	}
	return output(ids)
}

// listed holds the fields of an object that filters can match, by their names in schema 1.
type listed map[string]string

func (o listed) matches(filter map[string]string) bool {
	for name, want := range filter {
		have := o[name]
		if name == "Name" && have != want || !strings.EqualFold(have, want) {
			return false
		}
	}
	return true
}

// all lists the objects of a kind in order of creation.
func (s *Service) all(kind string) ([]listed, error) {
	ctx := context.Background()
	var all []listed
	switch kind {
	case networks:
		found, err := s.config.HNS.Networks(ctx)
		for _, n := range found {
			all = append(all, listed{"ID": n.ID, "Name": n.Name, "Type": string(n.Type)})
		}
		return all, err
	case endpoints:
		found, err := s.config.HNS.AllEndpoints(ctx)
		for _, e := range found {
			all = append(all, listed{"ID": e.ID, "Name": e.Name, "VirtualNetwork": e.HostComputeNetwork, "State": strconv.Itoa(int(s.config.HNS.State(e.ID)))})
		}
		return all, err
	case namespaces:
		found, err := s.config.HNS.Namespaces(ctx)
		for _, n := range found {
			all = append(all, listed{"ID": n.ID})
		}
		return all, err
	}
	for _, id := range s.extra.order[kind] {
		all = append(all, listed{"ID": id})
	}
	return all, nil
}

// parseQuery parses the filter of a query: a JSON document inside a JSON document. Without a filter
// everything matches.
func parseQuery(query string) (map[string]string, error) {
	if query == "" {
		return nil, nil
	}
	var q struct{ Filter string }
	if err := json.Unmarshal([]byte(query), &q); err != nil {
		return nil, hns.NewError("query", hns.CodeInvalidJSON, "Invalid JSON document string.")
	}
	if q.Filter == "" {
		return nil, nil
	}
	var members map[string]any
	if err := json.Unmarshal([]byte(q.Filter), &members); err != nil {
		return nil, hns.NewError("query", hns.CodeInvalidJSON, "Invalid JSON document string.")
	}
	filter := make(map[string]string, len(members))
	for name, value := range members {
		filter[name] = fmt.Sprint(value)
	}
	return filter, nil
}

// create makes an object. The ID is an argument of the call, or a field of the document.
func (s *Service) create(c Call, kind string) (string, error) {
	ctx := context.Background()
	switch kind {
	case networks:
		n, err := networkSettings(c.Args[0])
		if err != nil {
			return "", err
		}
		n.ID = chooseID(n.ID, c.GUID)
		made, err := s.config.HNS.CreateNetwork(ctx, n)
		return made.ID, err
	case endpoints:
		h, err := s.handles.get(c.Handle, networks)
		if err != nil {
			return "", err
		}
		e, err := endpointSettings(c.Args[0])
		if err != nil {
			return "", err
		}
		e.ID, e.HostComputeNetwork = chooseID(e.ID, c.GUID), h.id
		made, err := s.config.HNS.CreateEndpoint(ctx, e)
		return made.ID, err
	case namespaces:
		var n hns.Namespace
		if err := decode(c.Args[0], &n); err != nil {
			return "", err
		}
		n.ID = chooseID(n.ID, c.GUID)
		made, err := s.config.HNS.CreateNamespace(ctx, n)
		return made.ID, err
	}
	var d document
	if err := decode(c.Args[0], &d); err != nil {
		return "", err
	}
	return s.extra.create(kind, chooseID(d.text("ID"), c.GUID), d, s.config.HNS)
}

func chooseID(inDocument, inCall string) string {
	if inDocument != "" {
		return inDocument
	}
	return inCall
}

func (s *Service) delete(kind, id string) error {
	ctx := context.Background()
	switch kind {
	case networks:
		return s.config.HNS.DeleteNetwork(ctx, id)
	case endpoints:
		return s.config.HNS.DeleteEndpoint(ctx, id)
	case namespaces:
		return s.config.HNS.DeleteNamespace(ctx, id)
	}
	return s.extra.delete(kind, id)
}

// decode parses a document of a client.
func decode(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return hns.NewError("settings", hns.CodeInvalidJSON, "Invalid JSON document string.")
	}
	return nil
}

// networkSettings parses a network of either schema.
func networkSettings(text string) (hns.Network, error) {
	var d document
	if err := decode(text, &d); err != nil {
		return hns.Network{}, err
	}
	if d["SchemaVersion"] == nil {
		return network1(text)
	}
	var n hns.Network
	return n, decode(text, &n)
}

// endpointSettings parses an endpoint of either schema.
func endpointSettings(text string) (hns.Endpoint, error) {
	var d document
	if err := decode(text, &d); err != nil {
		return hns.Endpoint{}, err
	}
	if d["SchemaVersion"] == nil {
		return endpoint1(text)
	}
	var e hns.Endpoint
	return e, decode(text, &e)
}
