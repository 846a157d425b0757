// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// schema1 answers HNSCall: a method, a path and a document.
func (s *Service) schema1(c Call) (Answer, error) {
	v, err := s.route1(c.Args[0], strings.Split(strings.Trim(c.Args[1], "/"), "/"), c.Args[2])
	if err != nil {
		return Answer{}, err
	}
	return output(map[string]any{"Success": true, "Output": v})
}

func (s *Service) route1(method string, path []string, body string) (any, error) {
	id := ""
	if len(path) > 1 {
		id = strings.ToLower(path[1])
	}
	switch path[0] {
	case "globals":
		v, err := s.config.HNS.Version(context.Background())
		return map[string]int{"Major": v.Major, "Minor": v.Minor}, err
	case "networks":
		return s.networks1(method, id, body)
	case "endpoints":
		if len(path) == 3 {
			return s.attach1(id, path[2], body)
		}
		return s.endpoints1(method, id, body)
	case "endpointstats":
		stats, err := s.config.HNS.EndpointStats(context.Background(), id)
		return statsDocument(id, stats), err
	case "policylists":
		return s.lists1(method, id, body)
	case "accelnet":
		return s.accelnet1(method, body)
	}
	return nil, notImplemented()
}

func notImplemented() error {
	return hns.NewError("HNSCall", hns.CodeNotImplemented, "Not implemented")
}

func (s *Service) networks1(method, id, body string) (any, error) {
	ctx := context.Background()
	switch {
	case method == "GET" && id == "":
		found, err := s.config.HNS.Networks(ctx)
		views := []view{}
		for _, n := range found {
			views = append(views, s.networkView(n))
		}
		return views, err
	case method == "GET":
		n, err := s.config.HNS.Network(ctx, id)
		return s.networkView(n), err
	case method == "POST" && id == "":
		n, err := networkSettings(body)
		if err != nil {
			return nil, err
		}
		made, err := s.config.HNS.CreateNetwork(ctx, n)
		return s.networkView(made), err
	case method == "DELETE":
		return view{}, s.config.HNS.DeleteNetwork(ctx, id)
	}
	return nil, notImplemented()
}

func (s *Service) endpoints1(method, id, body string) (any, error) {
	ctx := context.Background()
	switch {
	case method == "GET" && id == "":
		found, err := s.config.HNS.AllEndpoints(ctx)
		views := []view{}
		for _, e := range found {
			views = append(views, s.endpointView(e))
		}
		return views, err
	case method == "GET":
		e, err := s.config.HNS.Endpoint(ctx, id)
		return s.endpointView(e), err
	case method == "POST" && id == "":
		e, err := endpointSettings(body)
		if err != nil {
			return nil, err
		}
		made, err := s.config.HNS.CreateEndpoint(ctx, e)
		return s.endpointView(made), err
	case method == "POST":
		return s.update1(id, body)
	case method == "DELETE":
		e, err := s.config.HNS.Endpoint(ctx, id)
		if err == nil {
			err = s.config.HNS.DeleteEndpoint(ctx, id)
		}
		return s.endpointView(e), err
	}
	return nil, notImplemented()
}

// update1 replaces the ACLs of an endpoint and keeps its other policies.
func (s *Service) update1(id, body string) (any, error) {
	ctx := context.Background()
	wanted, err := endpoint1(body)
	if err != nil {
		return nil, err
	}
	have, err := s.config.HNS.Endpoint(ctx, id)
	if err != nil {
		return nil, err
	}
	var policies []hns.Policy
	for _, p := range have.Policies {
		if !p.Is(hns.TypeACL) {
			policies = append(policies, p)
		}
	}
	for _, p := range wanted.Policies {
		if p.Is(hns.TypeACL) {
			policies = append(policies, p)
		}
	}
	changed, err := s.config.HNS.ModifyEndpoint(ctx, id, hns.Update, policies...)
	return s.endpointView(changed), err
}

// attach1 attaches an endpoint to the host or to a container, or detaches it.
func (s *Service) attach1(id, verb, body string) (any, error) {
	var r struct{ SystemType, ContainerID string }
	if err := decode(body, &r); err != nil {
		return nil, err
	}
	ctx := context.Background()
	switch strings.ToLower(r.SystemType + " " + verb) {
	case "host attach":
		return view{}, s.config.HNS.AttachEndpoint(ctx, hns.HostNamespace, id)
	case "host detach":
		return view{}, s.config.HNS.DetachEndpoint(ctx, hns.HostNamespace, id)
	case "container attach":
		return view{}, s.share(r.ContainerID, id)
	case "container detach":
		return view{}, s.unshare(r.ContainerID, id)
	}
	return nil, notImplemented()
}

func (s *Service) lists1(method, id, body string) (any, error) {
	switch {
	case method == "GET" && id == "":
		all := []document{}
		for _, id := range s.extra.order[lists] {
			all = append(all, s.extra.objects[lists][id])
		}
		return all, nil
	case method == "GET":
		return s.extra.get(lists, id)
	case method == "POST" && id == "":
		var d document
		if err := decode(body, &d); err != nil {
			return nil, err
		}
		for _, reference := range d.texts("References") {
			if _, err := s.config.HNS.Endpoint(context.Background(), strings.TrimPrefix(reference, "/endpoints/")); err != nil {
				return nil, hns.NewError("HNSCall", hns.CodeEndpointNotFound, "The endpoint was not found.")
			}
		}
		return s.extra.get(lists, s.extra.put(lists, "", d))
	case method == "DELETE":
		return view{}, s.extra.delete(lists, id)
	}
	return nil, notImplemented()
}

func (s *Service) accelnet1(method, body string) (any, error) {
	var d struct{ MacAddressList []document }
	switch method {
	case "POST":
		if err := decode(body, &d); err != nil {
			return nil, err
		}
		s.macs = d.MacAddressList
	case "DELETE":
		s.macs = nil
	}
	d.MacAddressList = append([]document{}, s.macs...)
	return d, nil
}

func statsDocument(id string, s hns.Stats) any {
	return view{"EndpointId": id, "InstanceId": id, "BytesReceived": 0, "BytesSent": 0,
		"PacketsReceived": s.PacketsReceived, "PacketsSent": s.PacketsSent,
		"DroppedPacketsIncoming": s.DroppedIn, "DroppedPacketsOutgoing": s.DroppedOut}
}

// defaultOf returns the default route of the IP version of a prefix.
func defaultOf(prefix string) string {
	if p, err := netip.ParsePrefix(prefix); err == nil && p.Addr().Is6() {
		return "::/0"
	}
	return "0.0.0.0/0"
}
