// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// maxPaths bounds the paths of a field mask.
const maxPaths = 256

// Mask copies the wanted fields of a flow. The nil Mask copies nothing and wants all.
type Mask struct{ fields maskNode }

// maskNode holds the wanted fields of a message; those that map to nil are wanted as a whole.
type maskNode map[protoreflect.FieldDescriptor]maskNode

// NewMask compiles a field mask; nil or empty wants all fields. Paths of fields that Isthmus does not send are
// ignored: newer clients request fields of newer servers.
func NewMask(m *fieldmaskpb.FieldMask) (*Mask, error) {
	paths := m.GetPaths()
	if len(paths) == 0 {
		return nil, nil
	}
	if len(paths) > maxPaths {
		return nil, fmt.Errorf("field_mask has %d paths: give at most %d", len(paths), maxPaths)
	}
	root := maskNode{}
	for _, p := range paths {
		root.add((*flow.Flow)(nil).ProtoReflect().Descriptor(), p)
	}
	return &Mask{root}, nil
}

// add wants the field of a path, and all that it holds.
func (n maskNode) add(d protoreflect.MessageDescriptor, path string) {
	name, rest, nested := strings.Cut(path, ".")
	fd := d.Fields().ByName(protoreflect.Name(name))
	if fd == nil {
		return
	}
	below, known := n[fd]
	switch {
	case known && below == nil: // wanted as a whole
	case !nested || fd.Message() == nil || fd.IsList():
		n[fd] = nil
	default:
		if below == nil {
			below = maskNode{}
			n[fd] = below
		}
		below.add(fd.Message(), rest)
	}
}

// Apply returns a flow with the wanted fields only. It shares parts with the argument.
func (m *Mask) Apply(f *flow.Flow) *flow.Flow {
	if m == nil {
		return f
	}
	out := &flow.Flow{}
	m.fields.copy(out.ProtoReflect(), f.ProtoReflect())
	return out
}

func (n maskNode) copy(to, from protoreflect.Message) {
	for fd, below := range n {
		switch {
		case !from.Has(fd):
		case below == nil:
			to.Set(fd, from.Get(fd))
		default:
			inner := to.NewField(fd)
			below.copy(inner.Message(), from.Get(fd).Message())
			to.Set(fd, inner)
		}
	}
}
