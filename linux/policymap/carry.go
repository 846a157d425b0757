// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Field is a field of a struct in a map: its name, and where it is, in bytes. A
// field of a struct within the struct has the names of both, with a dot.
type Field struct {
	Name         string
	Offset, Size int
}

// Shape is a struct as a layout of the maps has it.
type Shape struct {
	Size   int
	Fields []Field
}

// valid reports what no struct can be.
func (s Shape) valid() error {
	seen := make(map[string]bool, len(s.Fields))
	for _, f := range s.Fields {
		if f.Offset < 0 || f.Size <= 0 || f.Size > s.Size || f.Offset > s.Size-f.Size {
			return fmt.Errorf("field %s is outside of its struct", f.Name)
		}
		if seen[f.Name] {
			return fmt.Errorf("there are two fields %s", f.Name)
		}
		seen[f.Name] = true
	}
	return nil
}

// Equal reports whether both have the same fields in the same places.
func (s Shape) Equal(o Shape) bool {
	less := func(a, b Field) int { return a.Offset - b.Offset }
	return s.Size == o.Size && slices.Equal(slices.SortedFunc(slices.Values(s.Fields), less), slices.SortedFunc(slices.Values(o.Fields), less))
}

// Conversion makes a struct of one layout from that of another: fields with the
// same name and size are copied, the others are zero.
type Conversion struct {
	from, to int
	moves    []move
	copied   map[string]int // where they come from
}

type move struct{ from, to, size int }

// NewConversion finds out what is to be copied. Fields that are required have to
// be there with the same size.
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
			return nil, fmt.Errorf("there is no field %s of the size that it has now", name)
		}
	}
	return c, nil
}

// Copies reports whether all of these fields are copied.
func (c *Conversion) Copies(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := c.copied[n]; return !ok })
}

// From is where a field that is copied is in the struct that it comes from.
func (c *Conversion) From(name string) (offset int) { return c.copied[name] }

// Convert returns the struct in the other layout, nil if this is none of the
// size that was said.
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

// CarriedEpoch is what the roles of flows have that come from another layout. No
// slot ever has it, so that every flow is asked about again.
const CarriedEpoch = 1

// What a struct conn may hold (bpf/include/types.h).
const (
	connStates     = 3
	sideOpened     = 1
	sideAccepted   = 2
	sideRevoked    = 4
	connDirect     = 1
	connTranslated = 2
)

// CarryFlow makes a flow of an older layout one that every policy is asked about
// anew. knowsBackend says that the older layout notes where translated flows go.
// It returns false for a flow that has values which mean nothing here.
func CarryFlow(c bpfobj.PodConn, knowsBackend bool) (bpfobj.PodConn, bool) {
	if c.State >= connStates || (c.Side[0]|c.Side[1])&^(sideOpened|sideAccepted|sideRevoked) != 0 {
		return c, false
	}
	c.Flags &= connDirect | connTranslated
	if !knowsBackend {
		// Its next packet is decided behind the translation.
		c.Flags &^= connTranslated
		c.BackendPort, c.Backend = 0, [16]byte{}
	}
	c.Epoch = [2]uint32{CarriedEpoch, CarriedEpoch}
	c.Slot = [2]uint16{} // found again by the address, as the epoch is another
	c.Pad = 0
	return c, true
}

// MergeFlow tells what to write for a carried flow that is there already. What
// no program has used since it was carried is exchanged; to what programs have
// decided since, roles are added that it had, and all of it is asked about anew.
func MergeFlow(carried, there bpfobj.PodConn) (bpfobj.PodConn, bool) {
	untouched := true
	for i := range there.Side {
		untouched = untouched && (there.Side[i] == 0 || there.Epoch[i] == CarriedEpoch)
	}
	if newer := int32(there.Seen - carried.Seen); untouched && newer <= 0 {
		return carried, carried != there
	}
	merged, changed := there, false
	for i, had := range carried.Side {
		if there.Side[i]&sideRevoked == 0 && had&^there.Side[i] != 0 {
			merged.Side[i] |= had &^ sideRevoked
			changed = merged.Side[i] != there.Side[i] || changed
		}
	}
	if changed {
		merged.Epoch = [2]uint32{CarriedEpoch, CarriedEpoch}
	}
	return merged, changed
}
