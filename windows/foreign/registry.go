// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/statefile"
)

// entry is an attachment of a pod.
type entry struct {
	// HNS is the GUID of the endpoint, in lower case.
	HNS string `json:"hns"`
	// NetNS is the HCN namespace of the pod, or the handle of an adopted endpoint.
	NetNS string       `json:"netns"`
	Pod   model.PodID  `json:"pod"`
	IPs   []netip.Addr `json:"ips"`
}

// registry says which endpoint belongs to which attachment. It is one file, replaced as a whole before HNS is
// changed.
type registry struct {
	file      string
	Endpoints map[model.EndpointID]entry `json:"endpoints"`
	// Held are the claims for which endpoints without an attachment are closed, by GUID.
	Held map[string]string `json:"held,omitempty"`
}

// openRegistry reads the file. Without a file name it is kept in memory. A damaged file is set aside, and the error
// reports that: the registry is then empty and works, and the agent attaches its pods again. There is no registry if the file
// cannot be read, as the next write would replace it.
func openRegistry(file string) (*registry, error) {
	r := &registry{file: file}
	err := r.read()
	switch {
	case errors.Is(err, statefile.ErrDamaged):
		*r = registry{file: file}
		err = fmt.Errorf("read the list of endpoints: %w", err)
	case err != nil:
		return nil, fmt.Errorf("read the list of endpoints: %w: end programs that have it open", err)
	}
	if r.Endpoints == nil {
		r.Endpoints = make(map[model.EndpointID]entry)
	}
	if r.Held == nil {
		r.Held = make(map[string]string)
	}
	return r, err
}

func (r *registry) read() error {
	if r.file == "" {
		return nil
	}
	if err := statefile.Load(r.file, r.decode); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r *registry) decode(text []byte) error {
	if err := json.Unmarshal(text, r); err != nil {
		return err
	}
	for id, e := range r.Endpoints {
		if id == "" || e.HNS == "" || e.NetNS == "" || len(e.IPs) == 0 {
			return fmt.Errorf("endpoint %q has no hns, netns or ips", id)
		}
	}
	return nil
}

// owner returns the attachment of an endpoint; "" if it has none.
func (r *registry) owner(guid string) model.EndpointID {
	for id, e := range r.Endpoints {
		if strings.EqualFold(e.HNS, guid) {
			return id
		}
	}
	return ""
}

// put records an attachment. It takes the endpoint from an earlier attachment, and ends a claim to it.
func (r *registry) put(id model.EndpointID, e entry) error {
	if before := r.owner(e.HNS); before != "" && before != id {
		delete(r.Endpoints, before)
	}
	delete(r.Held, e.HNS)
	r.Endpoints[id] = e
	return r.write()
}

func (r *registry) remove(id model.EndpointID) error {
	delete(r.Endpoints, id)
	return r.write()
}

func (r *registry) hold(guid, claim string) error {
	r.Held[guid] = claim
	return r.write()
}

func (r *registry) write() error {
	if r.file == "" {
		return nil
	}
	if err := statefile.Save(r.file, r); err != nil {
		return fmt.Errorf("record the endpoints of other plugins: %w", err)
	}
	return nil
}
