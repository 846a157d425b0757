// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"iter"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// Node is all representations of the policy of one node, which should agree.
type Node struct {
	Snapshot *model.Snapshot
	State    *model.State
	// Maps are the entries of the BPF maps. Nil Maps are not compared.
	Maps Maps
	// Lists are the ACLs, in each form that they have.
	Lists []Lists
	// Reported is what the compiler could not do exactly. If it is not empty, tables may
	// deny flows that the reference allows.
	Reported []model.Unsupported
	// NoReference omits the evaluator.
	NoReference bool
	// Reference, if set, is that of the Snapshot, which several nodes may share.
	Reference *Reference
	// Workers bounds the endpoints that are compared at the same time; 0 means one for each
	// processor.
	Workers int
	// Progress, if set, is called with the number of finished endpoints and of all
	// endpoints, from several goroutines.
	Progress func(done, total int)
}

// Maps is a side that decides as the BPF programs do: an address has a class, a slot and a
// class have a row, and a row has a verdict for every port. Methods are safe for concurrent
// use.
type Maps interface {
	// Problems lists what a starting agent could not read back.
	Problems() []string
	// Slot returns the slot of an endpoint, and false if it has none.
	Slot(id model.EndpointID) (uint32, bool)
	// Table returns the number of a slot's Table, the Table with this number, and false if
	// there is none.
	Table(slot uint32) (number uint32, id model.TableID, ok bool)
	// Addresses yields addresses and prefixes that have a class of their own.
	Addresses() iter.Seq[netip.Prefix]
	// Ranges yields the ranges of ports that have a class of their own.
	Ranges() iter.Seq[model.PortMatch]
	// PortClass returns the class of a port, and false for protocols without ports.
	PortClass(p model.Protocol, port uint16) (uint16, bool)
	Class(a netip.Addr) model.PeerClass
	Row(slot uint32, d model.Direction, c model.PeerClass) uint32
	Verdict(row uint32, p model.Protocol, port uint16) model.Verdict
}

// Lists is a side that decides as HNS does: by a list of rules for each endpoint, under
// every reading of what HNS leaves undocumented. Callers call Prepare before Readings,
// Divide and Explain, which are safe for concurrent use.
type Lists interface {
	// Title is the name of the side in reports.
	Title() string
	// Excuses reports whether the lists may deny everything about an address that the State
	// allows. They must never allow flows that the State denies.
	Excuses(remote netip.Addr) bool
	// Reported lists the other flows that the lists deny although the State allows them.
	Reported() []model.Unsupported
	// List numbers the list of an endpoint, and returns false if it has none.
	List(id model.EndpointID) (number int, ok bool)
	// Members returns the sets of addresses that rules distinguish from others, each as
	// prefixes.
	Members() ([][]netip.Prefix, error)
	// Ranges yields the ranges of ports that rules distinguish from others, and protocols
	// without ports as a range from 0 to 0.
	Ranges() iter.Seq[model.PortMatch]
	// Prepare reads the list of an endpoint. The error describes what HNS would reject.
	Prepare(id model.EndpointID) error
	// Readings returns the number of readings of each group. Under all readings of a group
	// the same rules match an address.
	Readings(id model.EndpointID) []int
	// Divide divides ascending remote addresses by the rules that match them: of[group][i]
	// is the part of remotes[i]. under returns the ports that the rules of a part allow,
	// under one reading of its group.
	Divide(id model.EndpointID, d model.Direction, remotes []netip.Addr) (of [][]int, under func(group, part, reading int) func(model.Protocol, uint16) bool)
	// Explain returns the causes of the decision of a cell: one if all readings agree.
	Explain(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16, say func(by string, v model.Verdict, cause string))
}
