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

// ErrTooManyPeers is returned by Apply when the State distinguishes more peers than the data path can hold. Nothing was
// changed. A State with fewer peer classes may fit.
var ErrTooManyPeers = errors.New("the policies distinguish more peers than fit")

// ErrInterfaceExists is returned by AddEndpoint when the pod already has an interface of that name which
// Isthmus did not create.
var ErrInterfaceExists = errors.New("interface exists")

// ErrInterfaceKind is returned by AddEndpoint when policy cannot be enforced on the interface that another CNI
// plugin made, or when the network namespace is that of the node.
var ErrInterfaceKind = errors.New("interface does not fit")

// Backend enforces States and attaches pods on one node. All methods are idempotent. Repeated after a crash
// in the middle of a call, they complete the missing parts. The agent calls them from one goroutine, except
// for Counters. A Starter attaches pods in parallel.
type Backend interface {
	// Features returns the capabilities of the data path. They do not change.
	Features() model.Features

	// AddEndpoint attaches a pod. A Backend that enforces policy on interfaces of another CNI plugin finds the
	// interface, and changes nothing of it but its programs. If the attachment exists it adopts it and repairs every missing part.
	// Default deny in both directions is in force before the pod can send or receive its first packet. It
	// stays until an Apply names the endpoint. After an error nothing of a new attachment remains, but the
	// interface of another CNI plugin may stay recorded until DeleteEndpoint, so that it is denied.
	AddEndpoint(ctx context.Context, spec EndpointSpec) (Attachment, error)

	// DeleteEndpoint removes every trace of an attachment. A missing attachment is not an error.
	DeleteEndpoint(ctx context.Context, id model.EndpointID) error

	// Endpoints lists all attachments, including incomplete and damaged ones, by reading them from the
	// system.
	Endpoints(ctx context.Context) ([]Installed, error)

	// Apply takes the whole node from the state in force to the State, and returns when it is in force.
	// Meanwhile every packet meets the old decision or the new one. A data path that stores classes goes by
	// the steps of Plan. One that stores rules per endpoint orders its writes itself, to the same effect.
	// Apply also applies the State to the Components. Endpoints that the State does not name keep or get
	// default deny. Constructs that the OS cannot express exactly are over-blocked and returned. After an
	// error the old decisions stay in force where the change failed, and Apply can be repeated.
	Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error)

	// InForce reads back the State in force, without terms, and with causes where they are stored. It returns nil if there is none or
	// the data path does not store classes.
	InForce(ctx context.Context) (*model.State, error)

	// Idle does a short piece of background work and reports whether more is left. An example is replacing
	// hooks that are quick to set up by durable ones. The agent calls it about once a second. While no request
	// arrives it calls it again at once if more is left.
	Idle(ctx context.Context) (more bool, err error)

	// Counters returns the totals since the data path was first loaded.
	Counters(ctx context.Context) (Counters, error)

	// Close releases the data path, which continues to work.
	Close() error
}

// Faulty is implemented by a Backend that also manages objects besides States, such as the fabric between
// nodes.
type Faulty interface {
	// Faults returns the problems that do not concern the State in force, each with the remedy. The agent
	// calls it from the goroutine of the other methods.
	Faults() []string
}

// Follower is implemented by a Backend that enforces policy on interfaces which another CNI plugin may make again.
type Follower interface {
	// Follow attaches programs to the interface that took the place of an attachment's. It is quick if there is
	// none. The agent calls it at least twice a second, also while requests arrive and after errors, from the
	// goroutine of the other methods.
	Follow(ctx context.Context) error
}

// Dependent is implemented by a Backend whose decisions also depend on data that it reads from the system itself,
// such as the addresses of the host.
type Dependent interface {
	// Outdated reports whether that data has changed since the last Apply. The agent calls it after Idle, from the
	// same goroutine. It then applies the State again.
	Outdated() bool
}

// Starter is implemented by a Backend that attaches several pods faster in parallel than one after another.
type Starter interface {
	// Starts is the largest number of attachments that may be started and not finished.
	Starts() int
	// StartEndpoint begins AddEndpoint of a new endpoint. The part that takes long runs concurrently with the
	// other methods of the Backend; when it has ended, done is called once, from any goroutine. The agent then
	// calls finish once, which completes AddEndpoint with its result. In between it calls no other method
	// about the endpoint, and no State names it. The context bounds the concurrent part. After an error of
	// StartEndpoint nothing remains, and done is not called.
	StartEndpoint(ctx context.Context, spec EndpointSpec, done func()) (finish func(context.Context) (Attachment, error), err error)
}

// Preparer is a Starter that can make endpoints before their pods exist. StartEndpoint with exactly the
// addresses and the DNS settings of a prepared endpoint, without host ports and limits, uses it: only the
// attachment is left to do. A prepared endpoint is attached to nothing and denies everything.
type Preparer interface {
	Starter
	// Prepared lists the unused prepared endpoints that are ready, as last read from the system, also those
	// of an earlier process. Endpoints does not list them. It lists those that are damaged, under ids of their
	// own, so that they are removed as attachments without a record.
	Prepared() []Prepared
	// Prepare begins to make one, as StartEndpoint begins an attachment. After an error of finish nothing
	// remains.
	Prepare(ctx context.Context, p Prepared, done func()) (finish func(context.Context) error, err error)
	// Discard removes an unused one. A missing one is not an error.
	Discard(ctx context.Context, p Prepared) error
}

// Prepared is an endpoint that no pod has yet, with the settings that cannot change later.
type Prepared struct {
	// IPs are its addresses, at most one per family.
	IPs []netip.Addr
	DNS model.DNS
}

// BatchDeleter is implemented by a Backend that removes several attachments faster in one call than one
// after another.
type BatchDeleter interface {
	// DeleteEndpoints removes the attachments, all different, as DeleteEndpoint does. It returns one error
	// or nil for each, in the same order. One failure does not prevent the other removals.
	DeleteEndpoints(ctx context.Context, ids []model.EndpointID) []error
}

// Announcer is implemented by a Backend with data that other nodes need to reach its pods.
type Announcer interface {
	// NodeInfo returns the data that is known now; more may follow. The agent calls it often, from the
	// goroutine of the other methods.
	NodeInfo() model.NodeInfo
}

// SocketLister is implemented by a Backend that can list the sockets of its node. A host port would take
// over their connections.
type SocketLister interface {
	// Listening returns the address, protocol and port on which processes of the node accept connections or
	// datagrams. The pod's port is not set. The zero address means all addresses, the unspecified address
	// of a family all of that family.
	Listening() ([]model.HostPort, error)
}

// ServicePortLister is implemented by a Backend whose host ports could take connections of Services.
type ServicePortLister interface {
	// ServicePorts returns the ports of Services at addresses of the node, in the form of SocketLister.
	ServicePorts(ctx context.Context) ([]model.HostPort, error)
}

// Watcher is implemented by a Backend that reports single packets.
type Watcher interface {
	// Watch calls f with new flows and drops, in order, until the context is done. It begins with those
	// that were kept while no Watch ran. It may run concurrently with the other methods except Close, but
	// only once at a time. The data path does not wait for f: it counts events that f takes too late as
	// lost.
	Watch(ctx context.Context, f func([]model.FlowEvent)) error
}

// EndpointSpec is the desired attachment of a pod.
type EndpointSpec struct {
	ID          model.EndpointID
	ContainerID string
	// IfName is the name of the interface inside the pod.
	IfName string
	Pod    model.PodID
	// NetNS is the path of a network namespace on Linux, the GUID of an HCN namespace on Windows.
	NetNS string
	// NetNSID is Attachment.NetNSID of the endpoint, as a path may lead to another namespace later; "" before the first
	// attachment, and if it is not known. AddEndpoint returns ErrNoNetNS if it differs.
	NetNSID string
	// IPs are the addresses, at most one per family, without prefix length.
	IPs []netip.Addr
	// HostPorts are forwarded to the pod from the next Apply on. They are empty unless Features has
	// HostPorts.
	HostPorts []model.HostPort
	// Bandwidth limits the interface from its first packet on. It is zero unless Features supports it.
	Bandwidth model.Bandwidth
	// DNS configures the pod's resolver. It is zero unless Features has DNS, or if the runtime passed none:
	// the pod then has the resolver of its node.
	DNS model.DNS
	// Observed: the packets of the pod pass before the first Apply names it, too. See model.EndpointState.
	Observed bool
	// Migrated: another CNI plugin made the interface, and isthmusctl migrate gave it the form of this backend's
	// interfaces. Linux only.
	Migrated bool
}

// Attachment is what AddEndpoint created.
type Attachment struct {
	// HostIfName is the interface on the host's side; empty on Windows.
	HostIfName string
	// NetNSID tells the pod's network namespace from all others that had or will have its path; "" if the backend knows none.
	NetNSID string
	HostMAC net.HardwareAddr
	MAC     net.HardwareAddr
	// Addresses are the pod's addresses with the prefix length of its interface.
	Addresses []netip.Prefix
	// Gateways are the next hops of the default routes.
	Gateways []netip.Addr
	MTU      int
}

// Installed is an attachment as found on the system.
type Installed struct {
	ID model.EndpointID
	// Problems are the missing or wrong parts, one each; empty if the attachment is complete.
	Problems []string
	// InPod is what differs inside of the pod's network namespace, one each. It is reported and not repaired: a pod
	// with CAP_NET_ADMIN may change its own network.
	InPod []string
	// Unenforced is true if packets of the pod may pass without a decision, or cannot pass at all.
	Unenforced bool
	// Verdicts counts the decisions on new flows of the pod since its attachment, by Direction and Verdict;
	// nil if the data path does not count them by pod.
	Verdicts *[2][2]uint64
}

// Counters are totals of decisions on new flows.
type Counters struct {
	// Verdicts is indexed by Direction and Verdict. Counted is which of them the data path counts; the others
	// are zero, which means nothing.
	Verdicts [2][2]uint64
	Counted  model.FlowReports
	// Drops counts packets dropped for reasons other than policy, by reason.
	Drops map[string]uint64
	// PortDrops counts packets dropped at the pods' ports where the data path does not report why, policy
	// included; nil if it does.
	PortDrops map[model.Direction]uint64
	// Untracked counts allowed flows that did not fit into the flow table: their replies are decided as new
	// flows.
	Untracked uint64
	// Maps is the usage of the data path's tables, by name; nil without tables of fixed size.
	Maps map[string]MapUsage
	Deny DenyStatus
	// Repairs counts repaired changes by other processes.
	Repairs uint64
	// Repaired are the last of them, oldest first.
	Repaired []Repair
	// Events counts flow events that were not delivered.
	Events EventCounts
	// PathModes are the modes of the parts of the data path on this node.
	PathModes []PathMode
	// Facts are lines about the data path for administrators, each as "subject: statement".
	Facts []string
}

// PathMode is the mode of a part of the data path. Part and Mode are each one of a few words.
type PathMode struct {
	Part, Mode string
	// Count is the number of pods, uplinks or remote pod ranges in this mode; 1 if the mode concerns the
	// whole node.
	Count int
}

// EventCounts counts flow events that were not delivered since the data path was first loaded.
type EventCounts struct {
	// Limited were over the rate limit of their pod.
	Limited uint64
	// Lost were not read in time.
	Lost uint64
}

// MapUsage is the number of entries of a table, as last counted, and its capacity.
type MapUsage struct{ Entries, Capacity int }

// DenyStatus is the state of the deny list.
type DenyStatus struct {
	// Entries counts the entries in force, IPv4 and IPv6.
	Entries [2]int
	// Devices are the uplinks that enforce the deny list, by name.
	Devices []DenyDevice
	// Problems are the problems, one each.
	Problems []string
}

// DenyDevice is an uplink and its XDP mode: "native" is in its driver, "generic" in the kernel's stack.
type DenyDevice struct{ Name, Mode string }
