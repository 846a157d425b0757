// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// document is a JSON object in the form that its client sent.
type document map[string]any

func (d document) text(member string) string {
	text, _ := d[member].(string)
	return text
}

// texts returns a list of strings. It ignores elements of other types.
func (d document) texts(member string) []string {
	list, _ := d[member].([]any)
	var all []string
	for _, e := range list {
		if t, ok := e.(string); ok {
			all = append(all, t)
		}
	}
	return all
}

// documents returns a list of objects.
func (d document) documents(member string) []document {
	list, _ := d[member].([]any)
	var all []document
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			all = append(all, document(m))
		}
	}
	return all
}

// extra holds the objects that hnstest.Fake does not implement: load balancers, routes and policy
// lists. They are stored unchanged, and lost with the process.
type extra struct {
	sequence uint32
	objects  map[string]map[string]document // by kind and ID
	order    map[string][]string            // IDs by kind
}

func newExtra() extra {
	return extra{objects: make(map[string]map[string]document), order: make(map[string][]string)}
}

func (x *extra) get(kind, id string) (document, error) {
	if d, ok := x.objects[kind][strings.ToLower(id)]; ok {
		return d, nil
	}
	return nil, hns.NewError("get", hns.CodeNotFound, "Element not found.")
}

func (x *extra) put(kind, id string, d document) string {
	if id == "" || strings.Trim(id, "0-") == "" {
		x.sequence++
		id = fmt.Sprintf("%08x-15d0-4e0f-8c0e-0123456789ab", x.sequence)
	}
	id = strings.ToLower(id)
	d["ID"] = id
	if x.objects[kind] == nil {
		x.objects[kind] = make(map[string]document)
	}
	if x.objects[kind][id] == nil {
		x.order[kind] = append(x.order[kind], id)
	}
	x.objects[kind][id] = d
	return id
}

func (x *extra) delete(kind, id string) error {
	id = strings.ToLower(id)
	if _, err := x.get(kind, id); err != nil {
		return err
	}
	delete(x.objects[kind], id)
	x.order[kind] = slices.DeleteFunc(x.order[kind], func(o string) bool { return o == id })
	return nil
}

func (x *extra) create(kind, id string, d document, store *hnstest.Fake) (string, error) {
	if _, err := x.get(kind, id); err == nil {
		return "", hns.NewError("create", hns.CodeAlreadyExists, "Cannot create a file when that file already exists.")
	}
	if err := x.check(kind, "", d, store); err != nil {
		return "", err
	}
	return x.put(kind, id, d), nil
}

// maxBackends is the maximum number of endpoints of a load balancer.
const maxBackends = 1024

// check refuses references to missing endpoints, and ports that belong to another load balancer.
func (x *extra) check(kind, self string, d document, store *hnstest.Fake) error {
	backends := d.texts("HostComputeEndpoints")
	for _, id := range backends {
		if _, err := store.Endpoint(context.Background(), id); err != nil {
			return hns.NewError("create", hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
	}
	if kind != balancers {
		return nil
	}
	if len(backends) > maxBackends {
		return hns.NewError("create", hns.CodeInvalidPolicy, "too many endpoints")
	}
	keys, err := frontends(d)
	if err != nil {
		return err
	}
	for id, other := range x.objects[balancers] {
		theirs, _ := frontends(other)
		for key := range keys {
			if id != self && theirs[key] {
				return hns.NewError("create", hns.CodePortExists, "The specified port already exists.")
			}
		}
	}
	return nil
}

// frontends returns the protocols, ports and addresses of a load balancer. Without an address it
// uses the node's.
func frontends(d document) (map[string]bool, error) {
	keys := make(map[string]bool)
	vips := d.texts("FrontendVIPs")
	if len(vips) == 0 {
		vips = []string{""}
	}
	for _, m := range d.documents("PortMappings") {
		internal, _ := m["InternalPort"].(float64)
		external, _ := m["ExternalPort"].(float64)
		if internal == 0 || external == 0 {
			return nil, hns.NewError("create", hns.CodeInvalidPolicy, "ports of a load balancer must not be 0")
		}
		for _, vip := range vips {
			keys[fmt.Sprint(m["Protocol"], " ", external, " ", vip)] = true
		}
	}
	return keys, nil
}

// modifyBalancer replaces all settings of a load balancer.
func (s *Service) modifyBalancer(id, settings string) error {
	if !hnstest.Since(s.config.Version, hnstest.ModifiableLoadBalancers) {
		return hns.NewError("modify", hns.CodeNotImplemented, "Not implemented")
	}
	have, err := s.extra.get(balancers, id)
	if err != nil {
		return err
	}
	var wanted document
	if err := decode(settings, &wanted); err != nil {
		return err
	}
	next := maps.Clone(have)
	maps.Copy(next, wanted)
	next["ID"] = have["ID"]
	if err := s.extra.check(balancers, strings.ToLower(id), next, s.config.HNS); err != nil {
		return err
	}
	s.extra.put(balancers, id, next)
	return nil
}
