// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// systems is the Host Compute Service's name for containers.
const systems = "system"

// codeNoSystem is HCS_E_SYSTEM_NOT_FOUND.
const codeNoSystem = 0xC037010E

// shares records, by endpoint, the containers to which schema 1 attached it one by one. It is lost
// with the process.
type shares map[string][]string

// namespaceOf returns the namespace of a container.
func (s *Service) namespaceOf(container string) (string, error) {
	all, err := s.config.HNS.Namespaces(context.Background())
	if err != nil {
		return "", err
	}
	for _, n := range all {
		for _, r := range n.Resources {
			var data struct{ ID string }
			if r.Type == "Container" && json.Unmarshal(r.Data, &data) == nil && data.ID == container {
				return n.ID, nil
			}
		}
	}
	return "", hns.NewError("HcsOpenComputeSystem", codeNoSystem, "The virtual machine or container with the specified identifier does not exist.")
}

func (s *Service) openSystem(client, container string) (Answer, error) {
	if _, err := s.namespaceOf(container); err != nil {
		return Answer{}, err
	}
	return Answer{Handle: s.handles.open(client, systems, container)}, nil
}

func systemDocument(container string) any {
	return map[string]string{"Id": container, "SystemType": "Container", "Owner": "hnsemu", "RuntimeOsType": "Windows"}
}

// modifySystem attaches an endpoint to a running container, or detaches it.
func (s *Service) modifySystem(container, settings string) error {
	var r struct {
		ResourceType, RequestType string
		Settings                  json.RawMessage
	}
	if err := decode(settings, &r); err != nil {
		return err
	}
	var endpoint string
	if r.ResourceType != "Network" || json.Unmarshal(r.Settings, &endpoint) != nil {
		return hns.NewError("HcsModifyComputeSystem", hns.CodeNotImplemented, "Not implemented")
	}
	switch r.RequestType {
	case "Add":
		return s.share(container, endpoint)
	case "Remove":
		return s.unshare(container, endpoint)
	}
	return hns.NewError("HcsModifyComputeSystem", hns.CodeNotImplemented, "Not implemented")
}

// share attaches an endpoint to a container. The containers of one pod share the endpoint.
func (s *Service) share(container, endpoint string) error {
	namespace, err := s.namespaceOf(container)
	if err != nil {
		return err
	}
	e, err := s.config.HNS.Endpoint(context.Background(), endpoint)
	if err == nil {
		err = s.config.HNS.AttachEndpoint(context.Background(), namespace, e.ID)
	}
	if err == nil && !slices.Contains(s.shares[e.ID], container) {
		s.shares[e.ID] = append(s.shares[e.ID], container)
	}
	return err
}

// unshare detaches an endpoint from a container. After its last container the endpoint leaves the
// namespace.
func (s *Service) unshare(container, endpoint string) error {
	e, err := s.config.HNS.Endpoint(context.Background(), endpoint)
	if err != nil {
		return err
	}
	if !slices.Contains(s.shares[e.ID], container) {
		return hns.NewError("detach", hns.CodeEndpointNotAttached, "The endpoint is not attached.")
	}
	s.shares[e.ID] = slices.DeleteFunc(s.shares[e.ID], func(o string) bool { return o == container })
	if len(s.shares[e.ID]) > 0 {
		return nil
	}
	delete(s.shares, e.ID)
	if e.HostComputeNamespace == "" {
		return nil
	}
	return s.config.HNS.DetachEndpoint(context.Background(), e.HostComputeNamespace, e.ID)
}
