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

// sctpSupport remembers whether this HNS takes ACLs for SCTP. No source says it, and
// an HNS that refuses one ACL refuses the whole list.
type sctpSupport struct {
	// refused is set once HNS has taken a list only without SCTP. All lists are then
	// made without it.
	refused bool
	// otherwise has the endpoints whose lists HNS refuses without SCTP, too. Their
	// lists do not show anything about SCTP.
	otherwise map[model.EndpointID]bool
}

// Apply brings the endpoints that HNS has from what is in force to the State:
// it reads what is in force, keeps every list that is right, and writes the
// rest in the order of acl.Plan. The lists of endpoints that cannot be written
// stay as they are and give a dataplane.EndpointError each; the others go on.
// At the end everything that was written is read again and compared.
//
// What a call that was left behind may still write is uncertain: endpoints that
// it concerns give an error whatever is read of them, and nothing is built on
// it, until it has returned. After a second call without an answer nothing more
// is tried, so that the agent's other work does not wait for many deadlines.
//
// It does not go by dataplane.Plan: a plan of ACLs is made from what HNS really
// holds, which after a restart nobody else remembers.
//
// If HNS refuses a list with SCTP in it, Apply makes a second attempt without SCTP.
// If that helps, SCTP and the protocols without ports may be denied where policies
// allow them, and Apply reports so.
func (b *Backend) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	unsupported, refused, err := b.applyOnce(ctx, s)
	maps.DeleteFunc(b.sctp.otherwise, func(id model.EndpointID, _ bool) bool { _, still := refused[id]; return !still })
	maps.DeleteFunc(refused, func(id model.EndpointID, namesSCTP bool) bool { return !namesSCTP || b.sctp.otherwise[id] })
	if b.sctp.refused || len(refused) == 0 {
		return unsupported, err
	}
	b.sctp.refused = true
	unsupported, still, again := b.applyOnce(ctx, s)
	for id := range refused {
		if !dataplane.Concerns(again, id) {
			b.log.Warn("this HNS refuses ACLs for SCTP; it is denied unless policies allow everything", "err", err)
			return unsupported, again
		}
	}
	b.sctp.refused = false
	for id := range still {
		b.sctp.otherwise[id] = true
	}
	return unsupported, errors.Join(err, again)
}

// noteRefusal remembers that HNS refuses a list, and whether the list names SCTP.
func (x *execution) noteRefusal(s acl.Step, err error) {
	if s.Action == acl.WriteList && errors.Is(err, hns.ErrRefused) {
		x.refused[s.Endpoint] = acl.NamesSCTP(s.List)
	}
}
