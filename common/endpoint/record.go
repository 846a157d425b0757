// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// SchemaVersion is the version of the records that this package writes.
const SchemaVersion = 1

// State is the stage in the life of an endpoint.
type State string

// The stages of an endpoint.
const (
	// Adding is written before anything is created. After a crash the agent removes whatever was created.
	Adding State = "adding"
	// Ready is written when the endpoint's policy is in force.
	Ready State = "ready"
	// Released is written when the endpoint is removed. The record stays while its addresses are in
	// quarantine.
	Released State = "released"
)

// Kind identifies the plugin that made the interface of an endpoint.
type Kind string

// The kinds of endpoints.
const (
	// Own is an interface that Isthmus made.
	Own Kind = ""
	// Foreign is an interface that another CNI plugin made. Isthmus enforces policy on it.
	Foreign Kind = "foreign"
	// Migrated is an interface that another CNI plugin made and that Isthmus took over.
	Migrated Kind = "migrated"
)

// maxFurther bounds the further addresses of a record, of both families.
const maxFurther = 32

// Record is the state of an endpoint that survives a restart of the agent.
type Record struct {
	Version     int    `json:"version"`
	State       State  `json:"state"`
	Kind        Kind   `json:"kind,omitempty"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// NetNS is the path of a network namespace, or the GUID of an HCN namespace.
	NetNS string `json:"netns"`
	// NetNSID is dataplane.Attachment.NetNSID; it may be empty.
	NetNSID string `json:"netnsID,omitempty"`
	// Network is the name of the CNI network, which scopes GC.
	Network   string `json:"network,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the pod's UID as the runtime passed it; it may be empty.
	UID string       `json:"uid,omitempty"`
	IPs []netip.Addr `json:"ips"`
	// Further are more addresses that another CNI plugin gave the pod. The API does not have them.
	Further []netip.Addr `json:"further,omitempty"`
	// HostPorts are the ports of the node that are forwarded to the pod.
	HostPorts []model.HostPort `json:"hostPorts,omitempty"`
	// Bandwidth is the limit of the interface that the runtime requested.
	Bandwidth model.Bandwidth `json:"bandwidth,omitzero"`
	// DNS is the configuration of the resolver that the runtime requested.
	DNS model.DNS `json:"dns,omitzero"`
	// Created orders the records by the time of allocation.
	Created time.Time `json:"created"`
	// ReleasedAt is when the quarantine of the addresses began.
	ReleasedAt time.Time `json:"releasedAt,omitzero"`
}

// ID returns the endpoint's id.
func (r Record) ID() model.EndpointID { return model.MakeEndpointID(r.ContainerID, r.IfName) }

// Pod returns the pod's name.
func (r Record) Pod() model.PodID { return model.PodID{Namespace: r.Namespace, Name: r.Name} }

// Tombstone returns the part of the record that stays while the addresses are in quarantine. at is the time
// of the endpoint's removal.
func (r Record) Tombstone(at time.Time) Record {
	r.State, r.ReleasedAt = Released, at
	r.NetNS, r.NetNSID, r.Further, r.HostPorts, r.Bandwidth, r.DNS = "", "", nil, nil, model.Bandwidth{}, model.DNS{}
	return r
}

// Validate reports everything that is wrong with the record.
func (r Record) Validate() error {
	var errs []error
	need := func(ok bool, text string) {
		if !ok {
			errs = append(errs, errors.New(text))
		}
	}
	need(r.Version == SchemaVersion, fmt.Sprintf("version is %d, want %d", r.Version, SchemaVersion))
	need(r.State == Adding || r.State == Ready || r.State == Released, fmt.Sprintf("state %q is not one of adding, ready, released", r.State))
	need(r.Kind == Own || r.Kind == Foreign || r.Kind == Migrated, fmt.Sprintf("kind %q is not one of foreign, migrated", r.Kind))
	need(r.ContainerID != "", "containerID is empty")
	need(r.IfName != "", "ifName is empty")
	need(r.Namespace != "" && r.Name != "", "namespace or name is empty")
	need(r.State == Released || r.NetNS != "", "netns is empty")
	need(len(r.IPs) > 0, "ips is empty")
	need(!r.Created.IsZero(), "created is missing")
	need(r.State != Released || !r.ReleasedAt.IsZero(), "releasedAt is missing")
	for i, h := range r.HostPorts {
		need(h.Number > 0 && h.Port > 0 && h.Protocol.HasPorts(), fmt.Sprintf("hostPorts[%d] is %s to port %d: invalid port", i, h, h.Port))
	}
	if err := r.Bandwidth.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("bandwidth: %w", err))
	}
	if err := r.DNS.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("dns: %w", err))
	}
	for i, a := range r.IPs {
		need(a.IsValid() && !a.Is4In6() && a.Zone() == "", fmt.Sprintf("ips[%d] is %q, not a plain IPv4 or IPv6 address", i, a))
		for _, other := range r.IPs[:i] {
			need(other.Is6() != a.Is6(), fmt.Sprintf("ips has two addresses of one family, %s and %s", other, a))
		}
	}
	need(len(r.Further) == 0 || r.Kind == Foreign, fmt.Sprintf("further is of kind %q, not foreign", r.Kind))
	need(len(r.Further) <= maxFurther, fmt.Sprintf("further has %d addresses", len(r.Further)))
	for i, a := range r.Further {
		need(a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified(), fmt.Sprintf("further[%d] is %q, not a plain IPv4 or IPv6 address", i, a))
		need(!slices.Contains(r.IPs, a) && !slices.Contains(r.Further[:i], a), fmt.Sprintf("further[%d] is %s again", i, a))
	}
	return errors.Join(errs...)
}

// errNewer reports a record that a newer agent wrote.
var errNewer = errors.New("written by a newer version")

// encode returns the content of the record's file.
func encode(r Record) ([]byte, error) {
	r.Version = SchemaVersion
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("check record of %s: %w", r.ID(), err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode record of %s: %w", r.ID(), err)
	}
	if len(b) >= maxRecord {
		return nil, fmt.Errorf("encode record of %s: %d bytes exceed the limit of %d", r.ID(), len(b), maxRecord)
	}
	return append(b, '\n'), nil
}

// encodeShort returns the content of the record's file without indentation.
func encodeShort(r Record) ([]byte, error) {
	b, err := encode(r)
	if err != nil {
		return nil, err
	}
	var short bytes.Buffer
	if err := json.Compact(&short, b); err != nil {
		return nil, fmt.Errorf("encode record of %s: %w", r.ID(), err)
	}
	return short.Bytes(), nil
}

// decode parses the content of a record's file. Unknown fields are an error, because the next write would
// lose them.
func decode(b []byte) (Record, error) {
	var r Record
	var version struct{ Version int }
	if err := json.Unmarshal(b, &version); err != nil {
		return r, fmt.Errorf("decode: %w", err)
	}
	if version.Version > SchemaVersion {
		return r, fmt.Errorf("schema version %d: %w", version.Version, errNewer)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("decode: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return r, errors.New("decode: more than one JSON value")
	}
	return r, r.Validate()
}
