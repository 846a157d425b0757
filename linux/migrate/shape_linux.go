// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// convert computes how to convert a struct of the older layout into ours.
func convert(types *btf.Spec, now btf.Type, size uint32, required ...string) (*Conversion, error) {
	to, err := shapeOf(now)
	if err != nil {
		return nil, err
	}
	from, err := shapeByName(types, now.TypeName())
	if err != nil {
		return nil, err
	}
	if from.Size != int(size) {
		return nil, fmt.Errorf("struct %s has %d bytes, the map's have %d", now.TypeName(), from.Size, size)
	}
	c, err := NewConversion(from, to, required...)
	if err != nil {
		return nil, fmt.Errorf("struct %s: %w", now.TypeName(), err)
	}
	return c, nil
}

func shapeByName(types *btf.Spec, name string) (Shape, error) {
	var found *btf.Struct
	var err error
	for _, n := range names(name) {
		if err = types.TypeByName(n, &found); err == nil {
			return shapeOf(found)
		}
	}
	return Shape{}, fmt.Errorf("find struct %s: %w", name, err)
}

// shapeOfMap is shapeByName for a struct that a map of this value size holds.
func shapeOfMap(types *btf.Spec, name string, size uint32) (Shape, error) {
	s, err := shapeByName(types, name)
	if err == nil && s.Size != int(size) {
		err = fmt.Errorf("struct %s has %d bytes, the map's have %d", name, s.Size, size)
	}
	return s, err
}

// shapeOf lists the fields of a struct, including those of nested structs.
func shapeOf(t btf.Type) (Shape, error) {
	size, err := btf.Sizeof(t)
	if err != nil {
		return Shape{}, err
	}
	fields, err := fieldsOf(t, "", 0)
	return Shape{Size: size, Fields: fields}, err
}

func fieldsOf(t btf.Type, prefix string, at int) (all []Field, err error) {
	s, ok := btf.UnderlyingType(t).(*btf.Struct)
	if !ok {
		return nil, fmt.Errorf("type %s is not a struct", t.TypeName())
	}
	for _, m := range s.Members {
		if m.BitfieldSize > 0 {
			continue // occurs in no layout so far
		}
		name, offset := prefix+m.Name, at+int(m.Offset.Bytes())
		if _, nested := btf.UnderlyingType(m.Type).(*btf.Struct); nested {
			inner, err := fieldsOf(m.Type, name+".", offset)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			continue
		}
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", name, err)
		}
		all = append(all, Field{Name: name, Offset: offset, Size: size})
	}
	return all, nil
}

// sameMap returns an error if programs of both layouts cannot share a map.
func sameMap(m *ebpf.Map, types *btf.Spec, now *ebpf.MapSpec) error {
	if m.Type() != now.Type || m.Flags() != now.Flags || m.KeySize() != now.KeySize || m.ValueSize() != now.ValueSize {
		return fmt.Errorf("map %s has another type or size", now.Name)
	}
	for _, t := range []btf.Type{now.Key, now.Value} {
		if _, ok := btf.UnderlyingType(t).(*btf.Struct); !ok {
			continue
		}
		is, err := shapeOf(t)
		if err != nil {
			return err
		}
		was, err := shapeByName(types, t.TypeName())
		if err != nil {
			return err
		}
		if !is.Equal(was) {
			return fmt.Errorf("struct %s differs", t.TypeName())
		}
	}
	return nil
}

func decode(b []byte, to any) error {
	_, err := binary.Decode(b, binary.NativeEndian, to)
	return err
}

// within returns the part of a struct whose fields have a prefix, without it. Offsets stay those
// in the whole struct.
func (s Shape) within(prefix string) Shape {
	part := Shape{Size: s.Size}
	for _, f := range s.Fields {
		if name, ok := strings.CutPrefix(f.Name, prefix); ok {
			part.Fields = append(part.Fields, Field{name, f.Offset, f.Size})
		}
	}
	return part
}

// offset returns the offset of a field, -1 if there is none.
func (s Shape) offset(name string) int {
	i := slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return -1
	}
	return s.Fields[i].Offset
}
