// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// ErrNoNetNS is returned by AddEndpoint when the pod's network namespace (or
// HCN namespace) does not exist.
var ErrNoNetNS = errors.New("network namespace not found")

// ErrInterfaceExists is returned by AddEndpoint when the pod already has an
// interface of that name which Isthmus did not make.
var ErrInterfaceExists = errors.New("interface exists")

// Backend enforces States and attaches pods on one node. All methods may be
// called again with the same arguments, also after a crash in the middle of an
// earlier call, and then complete what is missing. The agent calls them from
// one goroutine, except for Counters.
type Backend interface {
	// Features tells what the data path can do. It does not change.
	Features() model.Features

	// AddEndpoint attaches a pod, or adopts the attachment if it is there
	// already, and puts every missing part right. Before the pod can send or
	// receive its first packet, default deny in both directions is in force;
	// it stays until an Apply names the endpoint. On an error nothing of a new
	// attachment is left.
	AddEndpoint(ctx context.Context, spec EndpointSpec) (Attachment, error)

	// DeleteEndpoint removes every trace of an attachment. What is gone
	// already is no error.
	DeleteEndpoint(ctx context.Context, id model.EndpointID) error

	// Endpoints lists what is attached, including half-made and broken
	// attachments, by reading it from the system.
	Endpoints(ctx context.Context) ([]Installed, error)

	// Apply brings the whole node from what is in force to the State, by the
	// steps of Plan, and returns when it is in force. Endpoints that the State
	// does not name keep or get default deny. What the OS cannot state exactly
	// is over-blocked and returned. After an error the old decisions are still
	// in force for whatever could not be changed, and Apply can be repeated.
	Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error)

	// InForce reads back the State that is in force, without causes and terms,
	// or nil if there is none or the data path does not keep classes.
	InForce(ctx context.Context) (*model.State, error)

	// Idle does a short piece of work that can wait, such as turning what is
	// quick to set up into what is better to keep, and reports whether there is
	// more. The agent calls it when nothing else is to be done.
	Idle(ctx context.Context) (more bool, err error)

	// Counters reads the totals since the data path was first loaded.
	Counters(ctx context.Context) (Counters, error)

	// Close lets go of the data path and leaves it working.
	Close() error
}

// Faulty is implemented by a Backend that looks after more than States: the
// fabric between nodes.
type Faulty interface {
	// Faults say what is wrong beside the State in force, and the remedy, one
	// thing each. It is called from the goroutine of the other methods.
	Faults() []string
}

// BatchDeleter is implemented by a Backend that removes several attachments in
// less time at once than one after another.
type BatchDeleter interface {
	// DeleteEndpoints does what DeleteEndpoint does with each, all of them
	// different, and answers in that order. One that fails does not keep the others.
	DeleteEndpoints(ctx context.Context, ids []model.EndpointID) []error
}

// Announcer is implemented by a Backend of which other nodes have to know
// something to reach its pods.
type Announcer interface {
	// Announcement is what is to be said now; it may be more later. It is called
	// from the goroutine of the other methods, often.
	Announcement() model.Announcement
}

// SocketLister is implemented by a Backend that sees the sockets of its node. A
// host port would take over what comes to them.
type SocketLister interface {
	// Listening lists where processes of the node accept connections or datagrams:
	// address, protocol and number, without a pod's port. The zero address stands for
	// all, the unspecified address of a family for all of that.
	Listening() ([]model.HostPort, error)
}

// Watcher is implemented by a Backend that can tell of single packets.
type Watcher interface {
	// Watch calls f with what becomes known of new flows and of drops, in order,
	// until the context is done; first with what became known while nobody watched,
	// as far as that was kept. It may run beside the other methods except Close,
	// and once at a time. The data path does not wait for f: what is not taken in
	// time is counted as lost.
	Watch(ctx context.Context, f func([]model.FlowEvent)) error
}

// EndpointSpec asks for an attachment.
type EndpointSpec struct {
	ID          model.EndpointID
	ContainerID string
	// IfName is the name of the interface inside the pod.
	IfName string
	Pod    model.PodID
	// NetNS is the path of a network namespace on Linux, the GUID of an HCN
	// namespace on Windows.
	NetNS string
	// IPs are the addresses, at most one per family, without prefix length.
	IPs []netip.Addr
	// HostPorts lead to the pod, from the next Apply on; none unless Features
	// has them.
	HostPorts []model.HostPort
	// Bandwidth limits the interface, before its first packet; nothing unless
	// Features has it.
	Bandwidth model.Bandwidth
}

// Attachment describes what AddEndpoint made.
type Attachment struct {
	// HostIfName is the interface on the host's side; empty on Windows.
	HostIfName string
	HostMAC    net.HardwareAddr
	MAC        net.HardwareAddr
	// Addresses are the pod's addresses with the prefix length that its
	// interface has.
	Addresses []netip.Prefix
	// Gateways are the next hops of the default routes.
	Gateways []netip.Addr
	MTU      int
}

// Installed is an attachment as it was found on the system.
type Installed struct {
	ID model.EndpointID
	// Problems say what is missing or wrong, one thing each; empty if the
	// attachment is complete.
	Problems []string
}

// Counters are totals of decisions on new flows.
type Counters struct {
	// Verdicts is indexed by Direction and Verdict.
	Verdicts [2][2]uint64
	// Drops counts packets dropped for other reasons than a policy, by reason.
	Drops map[string]uint64
	// Untracked counts allowed flows for which the flow table had no room: their
	// answers are decided as flows of their own.
	Untracked uint64
	// Maps tells how full the tables of the data path are, by name; nil where it
	// has none of fixed size.
	Maps map[string]MapUsage
	Deny DenyStatus
	// Repairs counts what others changed in the system and was put right.
	Repairs uint64
	// Events counts flow events that nobody was told of.
	Events EventCounts
	// PathModes say how what can be done in several ways is done on this node.
	PathModes []PathMode
}

// PathMode is how a part of the data path's work is done: Part is one of a few
// words for what, Mode one for how.
type PathMode struct {
	Part, Mode string
	// Count is how many pods, uplinks or ranges of other nodes are served so; 1
	// if it is said of the node.
	Count int
}

// EventCounts are flow events that were left out since the data path was first
// loaded.
type EventCounts struct {
	// Limited were more than their pod may cause.
	Limited uint64
	// Lost were not read in time.
	Lost uint64
}

// MapUsage is how many entries a table has, as far as was last counted, and
// how many it can have.
type MapUsage struct{ Entries, Capacity int }

// DenyStatus is how the deny list is enforced.
type DenyStatus struct {
	// Entries are those in force, of IPv4 and of IPv6.
	Entries [2]int
	// Devices are the uplinks that drop what is listed, by name.
	Devices []DenyDevice
	// Problems say what is wrong, one thing each.
	Problems []string
}

// DenyDevice is an uplink, and where its packets are dropped: "native" is in
// its driver, "generic" in the kernel's stack.
type DenyDevice struct{ Name, Mode string }
