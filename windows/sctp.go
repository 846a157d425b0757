// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"maps"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// sctpSupport records whether this HNS accepts ACLs for SCTP. No source documents it, and an HNS that
// refuses one ACL refuses the whole list.
type sctpSupport struct {
	// refused is set once HNS has accepted a list only without SCTP. From then on all lists omit it.
	refused bool
	// otherwise holds the endpoints whose lists HNS refuses even without SCTP. Their lists prove nothing
	// about SCTP.
	otherwise map[model.EndpointID]bool
}

// Apply leads the endpoints of HNS from the state in force to the State. It reads what is in force, keeps
// every list that is right, and writes the others in the order of acl.Plan. An endpoint that cannot be
// written keeps its list and gives a dataplane.EndpointError; the others continue. At the end it reads
// everything that was written and compares it.
//
// A write that timed out may still take effect later. Until it has returned, the endpoints that it concerns
// give an error, whatever HNS lists for them, and no step relies on it. After a second call without an
// answer Apply makes no further calls, so that the agent does not wait for many deadlines.
//
// Apply does not use dataplane.Plan: a plan of ACLs starts from the actual content of HNS, which no process
// remembers after a restart.
//
// If HNS refuses the content of a list with SCTP, Apply makes a second attempt without SCTP. If that succeeds, SCTP and
// the protocols without ports may be denied where policies allow them, and Apply reports so.
func (b *Backend) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	unsupported, refused, err := b.apply(ctx, s)
	maps.DeleteFunc(b.sctp.otherwise, func(id model.EndpointID, _ bool) bool { _, still := refused[id]; return !still })
	maps.DeleteFunc(refused, func(id model.EndpointID, namesSCTP bool) bool { return !namesSCTP || b.sctp.otherwise[id] })
	if b.sctp.refused || len(refused) == 0 {
		return unsupported, err
	}
	b.sctp.refused = true
	unsupported, still, again := b.apply(ctx, s)
	for id := range refused {
		if !dataplane.Concerns(again, id) {
			b.log.Warn("this HNS refuses ACLs for SCTP; it is denied unless policies allow everything", "error", err)
			return unsupported, again
		}
	}
	b.sctp.refused = false
	for id := range still {
		b.sctp.otherwise[id] = true
	}
	return unsupported, errors.Join(err, again)
}

// noteRefusal records that HNS refuses a list, and whether the list names SCTP.
func (x *execution) noteRefusal(s acl.Step, err error) {
	if s.Action == acl.WriteList && refusesContent(err) {
		x.refused[s.Endpoint] = acl.NamesSCTP(s.List)
	}
}

// refusesContent reports whether HNS says that it does not take the policies of a request. No source says which of
// these codes a protocol gets. Every other code says nothing about SCTP, unknown ones included.
func refusesContent(err error) bool {
	switch hns.Code(err) {
	case hns.CodeInvalidPolicy, hns.CodeInvalidPolicyType, hns.CodeInvalidArgument, hns.CodeInvalidJSON, hns.CodeRequestUnsupported,
		hns.CodeNotSupported, hns.CodeNotImplemented:
		return true
	}
	return false
}
