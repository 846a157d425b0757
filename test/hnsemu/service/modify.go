// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// request is the argument of a Modify call.
type request struct {
	ResourceType, RequestType string
	Settings                  json.RawMessage
}

func (s *Service) modify(kind, id, settings string) error {
	if kind == balancers {
		return s.modifyBalancer(id, settings)
	}
	var r request
	if err := decode(settings, &r); err != nil {
		return err
	}
	switch {
	case kind == namespaces && r.ResourceType == "Endpoint":
		return s.modifyNamespace(id, r)
	case kind == namespaces && r.ResourceType == "Container":
		var c struct{ ContainerId string }
		if err := decode(string(r.Settings), &c); err != nil {
			return err
		}
		return s.config.HNS.PutContainer(id, c.ContainerId, r.RequestType == "Remove")
	case (kind == networks || kind == endpoints) && r.ResourceType == "Policy":
		return s.modifyPolicies(kind, id, r)
	}
	return hns.NewError("modify", hns.CodeRequestUnsupported, "The specified request is unsupported.")
}

func (s *Service) modifyNamespace(id string, r request) error {
	var e struct{ EndpointId string }
	if err := decode(string(r.Settings), &e); err != nil {
		return err
	}
	switch r.RequestType {
	case "Add":
		return s.config.HNS.AttachEndpoint(context.Background(), id, e.EndpointId)
	case "Remove":
		return s.config.HNS.DetachEndpoint(context.Background(), id, e.EndpointId)
	}
	return hns.NewError("modify", hns.CodeRequestUnsupported, "The specified request is unsupported.")
}

func (s *Service) modifyPolicies(kind, id string, r request) error {
	var p struct{ Policies []hns.Policy }
	if err := decode(string(r.Settings), &p); err != nil {
		return err
	}
	var err error
	switch {
	case r.RequestType == "Refresh":
		_, err = s.get(kind, id)
	case kind == networks:
		_, err = s.config.HNS.ModifyNetwork(context.Background(), id, hns.RequestType(r.RequestType), p.Policies...)
	default:
		_, err = s.config.HNS.ModifyEndpoint(context.Background(), id, hns.RequestType(r.RequestType), p.Policies...)
	}
	return err
}
