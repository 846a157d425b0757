// SPDX-License-Identifier: Apache-2.0

package etw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf16"
)

// Bounds of what a description may contain. Manifests of Windows stay far below.
const (
	maxInfo   = 64 << 10 // bytes
	maxFields = 128
	maxValues = 1024 // of a map
	maxText   = 512  // UTF-16 units of a name or value
)

// Offsets in TRACE_EVENT_INFO, EVENT_PROPERTY_INFO and EVENT_MAP_INFO of tdh.h, which are the same on all 64-bit
// systems. Numbers are little-endian.
const (
	infoCount, infoTopLevel, infoFields = 100, 104, 112

	propertySize                                                         = 24
	propertyName, propertyIn, propertyMap, propertyCount, propertyLength = 4, 8, 12, 16, 18

	mapFlags, mapCount, mapEntries = 4, 8, 16
)

// Flags of EVENT_PROPERTY_INFO and EVENT_MAP_INFO.
const (
	flagStruct, flagParamLength, flagParamCount = 1, 2, 4

	flagValueMap = 1
)

// inType is TDH_IN_TYPE: how a field is stored.
type inType uint16

// The types that are decoded. Others end the decoding of an event, as their size is not known.
const (
	inUnicode inType = 1
	inANSI    inType = 2
	inBoolean inType = 13
	inBinary  inType = 14
	inGUID    inType = 15
	inPointer inType = 16
)

// sizes are the bytes of types with a fixed size.
var sizes = map[inType]int{3: 1, 4: 1, 5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8, 11: 4, 12: 8, inBoolean: 4, inGUID: 16, inPointer: 8, 17: 8, 18: 16, 20: 4, 21: 8}

// property describes one field.
type property struct {
	name string
	in   inType
	// size is the length in bytes; 0 for text that ends with a zero.
	size int
	// mapName names the map of the values, if there is one.
	mapName string
}

// schema describes the fields of one kind of event, up to the first that cannot be decoded.
type schema struct{ fields []property }

// names returns the names of the fields.
func (s *schema) names() []string {
	list := make([]string, len(s.fields))
	for i, f := range s.fields {
		list[i] = f.name
	}
	return list
}

// parseSchema parses TRACE_EVENT_INFO.
func parseSchema(info []byte) (*schema, error) {
	if len(info) > maxInfo || len(info) < infoFields {
		return nil, fmt.Errorf("description of an event has %d bytes; %d to %d are expected", len(info), infoFields, maxInfo)
	}
	count, top := binary.LittleEndian.Uint32(info[infoCount:]), binary.LittleEndian.Uint32(info[infoTopLevel:])
	if top > count || count > maxFields || infoFields+int(count)*propertySize > len(info) {
		return nil, fmt.Errorf("description of an event has %d fields of %d in %d bytes", top, count, len(info))
	}
	s := &schema{}
	for i := range int(top) {
		p := info[infoFields+i*propertySize:][:propertySize]
		f := property{in: inType(binary.LittleEndian.Uint16(p[propertyIn:])), size: int(binary.LittleEndian.Uint16(p[propertyLength:]))}
		if !f.decodable(binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint16(p[propertyCount:])) {
			break
		}
		var err error
		if f.name, err = textAt(info, binary.LittleEndian.Uint32(p[propertyName:])); err != nil {
			return nil, fmt.Errorf("name of field %d: %w", i, err)
		}
		if at := binary.LittleEndian.Uint32(p[propertyMap:]); at != 0 {
			if f.mapName, err = textAt(info, at); err != nil {
				return nil, fmt.Errorf("map of field %q: %w", f.name, err)
			}
		}
		s.fields = append(s.fields, f)
	}
	return s, nil
}

// decodable reports whether the size of a field is known, and sets it.
func (f *property) decodable(flags uint32, count uint16) bool {
	if flags&(flagStruct|flagParamLength|flagParamCount) != 0 || count > 1 {
		return false
	}
	switch f.in {
	case inUnicode:
		f.size *= 2 // is in characters
		return true
	case inANSI:
		return true
	case inBinary:
		return f.size > 0
	}
	size, known := sizes[f.in]
	if f.size == 0 {
		f.size = size
	}
	return known && f.size <= 16
}

// parseMap parses EVENT_MAP_INFO: the texts of the values of a field.
func parseMap(info []byte) (map[uint64]string, error) {
	if len(info) > maxInfo || len(info) < mapEntries {
		return nil, fmt.Errorf("map of values has %d bytes; %d to %d are expected", len(info), mapEntries, maxInfo)
	}
	count := binary.LittleEndian.Uint32(info[mapCount:])
	if binary.LittleEndian.Uint32(info[mapFlags:]) != flagValueMap {
		return nil, errors.New("map of values is of another kind")
	}
	if count > maxValues || mapEntries+int(count)*8 > len(info) {
		return nil, fmt.Errorf("map of values has %d entries in %d bytes", count, len(info))
	}
	values := make(map[uint64]string, count)
	for i := range int(count) {
		entry := info[mapEntries+i*8:]
		text, err := textAt(info, binary.LittleEndian.Uint32(entry))
		if err != nil {
			return nil, fmt.Errorf("text of value %d: %w", i, err)
		}
		values[uint64(binary.LittleEndian.Uint32(entry[4:]))] = text
	}
	return values, nil
}

// textAt returns the UTF-16 text at an offset, without the zero that ends it.
func textAt(b []byte, at uint32) (string, error) {
	if int64(at) >= int64(len(b)) {
		return "", fmt.Errorf("offset %d is beyond %d bytes", at, len(b))
	}
	text, _, err := cutUnicode(b[at:])
	return text, err
}

// cutUnicode cuts UTF-16 text with its zero off. Of longer text than maxText it returns the beginning.
func cutUnicode(b []byte) (text string, rest []byte, err error) {
	var units []uint16
	for i := 0; i+1 < len(b); i += 2 {
		u := binary.LittleEndian.Uint16(b[i:])
		if u == 0 {
			return string(utf16.Decode(units)), b[i+2:], nil
		}
		if len(units) < maxText {
			units = append(units, u)
		}
	}
	return "", nil, errors.New("text does not end")
}
