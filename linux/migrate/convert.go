// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"math"
	"slices"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Field is a field of a struct in a map: its name, offset and size in bytes. The name of a
// field of a nested struct consists of both names, with a dot.
type Field struct {
	Name         string
	Offset, Size int
}

// Shape is the shape of a struct in one map layout.
type Shape struct {
	Size   int
	Fields []Field
}

// valid returns an error if no struct can have this shape.
func (s Shape) valid() error {
	seen := make(map[string]bool, len(s.Fields))
	for _, f := range s.Fields {
		if f.Offset < 0 || f.Size <= 0 || f.Size > s.Size || f.Offset > s.Size-f.Size {
			return fmt.Errorf("field %s is outside its struct", f.Name)
		}
		if seen[f.Name] {
			return fmt.Errorf("field %s occurs twice", f.Name)
		}
		seen[f.Name] = true
	}
	return nil
}

// Equal reports whether both shapes have the same fields at the same offsets.
func (s Shape) Equal(o Shape) bool {
	less := func(a, b Field) int { return a.Offset - b.Offset }
	return s.Size == o.Size && slices.Equal(slices.SortedFunc(slices.Values(s.Fields), less), slices.SortedFunc(slices.Values(o.Fields), less))
}

// Conversion converts a struct of one layout into that of another. It copies fields with the
// same name and size; the others are zero.
type Conversion struct {
	from, to int
	moves    []move
	copied   map[string]int // offsets in the source struct
}

type move struct{ from, to, size int }

// NewConversion computes the fields to copy. Required fields must exist with the same size in
// both.
func NewConversion(from, to Shape, required ...string) (*Conversion, error) {
	if err := from.valid(); err != nil {
		return nil, err
	}
	if err := to.valid(); err != nil {
		return nil, err
	}
	c := &Conversion{from: from.Size, to: to.Size, copied: make(map[string]int)}
	for _, t := range to.Fields {
		i := slices.IndexFunc(from.Fields, func(f Field) bool { return f.Name == t.Name && f.Size == t.Size })
		if i >= 0 {
			c.moves = append(c.moves, move{from.Fields[i].Offset, t.Offset, t.Size})
			c.copied[t.Name] = from.Fields[i].Offset
		}
	}
	for _, name := range required {
		if !c.Copies(name) {
			return nil, fmt.Errorf("field %s is missing or has another size", name)
		}
	}
	return c, nil
}

// Copies reports whether all of these fields are copied.
func (c *Conversion) Copies(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := c.copied[n]; return !ok })
}

// From returns the offset of a copied field in the source struct.
func (c *Conversion) From(name string) (offset int) { return c.copied[name] }

// Convert returns the converted struct, nil if from does not have the size of the source
// struct.
func (c *Conversion) Convert(from []byte) []byte {
	if len(from) != c.from {
		return nil
	}
	to := make([]byte, c.to)
	for _, m := range c.moves {
		copy(to[m.to:m.to+m.size], from[m.from:m.from+m.size])
	}
	return to
}

// FlowFields lists the fields that the flows of an older layout have.
type FlowFields struct {
	End     bool // roles and flags as in this layout, since v3
	Backend bool // destination of flows after DNAT, since v2
	Client  bool // client of a masqueraded flow, since v3
}

// The flags of a flow in layouts up to v2.
const (
	previousStates     = 3
	sideOpened         = 1
	sideAccepted       = 2
	sideRevoked        = 4
	previousDirect     = 1
	previousTranslated = 2
)

// ConvertFlow converts a flow of an older layout into one that the programs revalidate. It
// returns false for a flow with unknown values.
func ConvertFlow(was bpfobj.PodCarriedFlow, has FlowFields) (c bpfobj.PodConn, known bool) {
	roles, flags, known := previousRoles(was, has)
	if !known || was.State >= previousStates {
		return c, false
	}
	c = bpfobj.PodConn{Seen: was.Seen, State: was.State, Sent: was.Sent, FlowFlags: flags & bpfobj.ConnDirect}
	for end := range c.End {
		c.End[end] = bpfobj.PodApproval{Epoch: policymap.MigratedEpoch, Authorised: roles[end]}
		if !has.End {
			c.Sent[end] = uint32(min(was.Packets[end], math.MaxUint32))
		}
	}
	// If the backend is unknown, the next packet is decided after DNAT. The slots of direct
	// flows follow from their addresses, in adopt_flow.
	if flags&bpfobj.ConnTranslated != 0 && has.Backend {
		c.FlowFlags |= bpfobj.ConnTranslated
		c.BackendPort, c.Backend = was.BackendPort, was.Backend
	}
	if flags&bpfobj.ConnMasqueraded != 0 && has.Client {
		c.FlowFlags |= bpfobj.ConnMasqueraded
		c.Client, c.ClientPort = was.Client, was.ClientPort // port 0 for layouts without it
	}
	return c, true
}

// previousRoles decodes the roles of both ends, and the flags.
func previousRoles(was bpfobj.PodCarriedFlow, has FlowFields) (roles [2]uint8, flags uint32, known bool) {
	if has.End {
		const all = bpfobj.RoleOpened | bpfobj.RoleAccepted | bpfobj.RoleOfHost | bpfobj.RoleRevoked
		for end, a := range was.End {
			if a.Authorised&^all != 0 {
				return roles, 0, false
			}
			roles[end] = a.Authorised
		}
		return roles, was.FlowFlags, true
	}
	for end, side := range was.Side {
		if side&^(sideOpened|sideAccepted|sideRevoked) != 0 {
			return roles, 0, false
		}
		roles[end] = side & (sideOpened | sideAccepted) // the same bits
		if side&sideRevoked != 0 {
			roles[end] |= bpfobj.RoleRevoked
		}
	}
	if was.Flags&previousDirect != 0 {
		flags |= bpfobj.ConnDirect
	}
	if was.Flags&previousTranslated != 0 {
		flags |= bpfobj.ConnTranslated
	}
	return roles, flags, true
}

// MergeFlow computes the value to write for a migrated flow that the table already holds. If no
// program has used the entry since it was migrated, it is replaced. Otherwise the older roles
// are added to the newer ones, and all of them are revalidated.
func MergeFlow(migrated, there bpfobj.PodConn) (bpfobj.PodConn, bool) {
	untouched := true
	for _, end := range there.End {
		untouched = untouched && (end.Authorised == 0 || end.Epoch == policymap.MigratedEpoch)
	}
	migrated.Version, migrated.Share, migrated.Place = there.Version, there.Share, there.Place
	migrated.FlowFlags |= there.FlowFlags & bpfobj.ConnOutside
	if newer := int32(there.Seen - migrated.Seen); untouched && newer <= 0 {
		return migrated, migrated != there
	}
	merged, changed := there, false
	for i, had := range migrated.End {
		if there.End[i].Authorised&bpfobj.RoleRevoked == 0 && had.Authorised&^there.End[i].Authorised != 0 {
			merged.End[i].Authorised |= had.Authorised &^ bpfobj.RoleRevoked
			changed = merged.End[i].Authorised != there.End[i].Authorised || changed
		}
	}
	if changed {
		for i := range merged.End {
			merged.End[i].Epoch = policymap.MigratedEpoch
		}
	}
	return merged, changed
}
