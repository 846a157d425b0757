// SPDX-License-Identifier: Apache-2.0

package etw

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Field is a decoded field of an event. A field is a number, text, or other bytes.
type Field struct {
	Name   string
	Number uint64
	Text   string
	// Bytes are the field as it is stored, which matters for addresses and ports in network order.
	Bytes []byte
	// Meaning is the text of Number in the provider's manifest; empty if it has none. It may be in the language
	// of the host.
	Meaning string
}

// Event is a decoded event.
type Event struct {
	ID     uint16
	Time   time.Time
	Fields []Field
}

// Field returns the field of a name, or nil.
func (e *Event) Field(name string) *Field {
	i := slices.IndexFunc(e.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &e.Fields[i]
}

// Raw is an event as it is recorded. Describe and Map are called for the first event of a kind only.
type Raw struct {
	ID      uint16
	Version uint8
	Time    time.Time
	// Data are the values of the fields. Event keeps no reference to them.
	Data []byte
	// Describe returns the TRACE_EVENT_INFO of the kind, Map the EVENT_MAP_INFO of a name.
	Describe func() ([]byte, error)
	Map      func(name string) ([]byte, error)
}

// ErrFlood is the error of a Decoder that gets too many events of kinds that are not wanted.
var ErrFlood = errors.New("the provider writes an event for every packet: this Windows ignores the filter of event ids")

// maxUnwanted bounds the events of unwanted kinds in a second. A working filter lets none through.
const maxUnwanted = 5000

// ErrLimit is the error of a Decoder for a wanted event beyond maxWanted.
var ErrLimit = fmt.Errorf("more than %d events in a second", maxWanted)

// maxWanted bounds the events that are decoded in a second: a pod that sends what is denied must not keep the processor
// busy.
const maxWanted = 20_000

// maxKinds bounds the kinds of events that a Decoder knows.
const maxKinds = 256

// Decoder decodes events. It is not safe for concurrent use.
type Decoder struct {
	wanted func(fields []string) bool
	kinds  map[[2]uint16]*kind

	second            int64 // Unix time of the events that are counted
	decoded, unwanted int
}

// kind is the decoded description of the events of one id and version.
type kind struct {
	schema schema
	maps   map[string]map[uint64]string
	wanted bool
}

// NewDecoder returns a Decoder of the events whose fields are wanted.
func NewDecoder(wanted func(fields []string) bool) *Decoder {
	return &Decoder{wanted: wanted, kinds: make(map[[2]uint16]*kind)}
}

// Wanted reports whether events that a TRACE_EVENT_INFO describes are wanted.
func (d *Decoder) Wanted(info []byte) bool {
	s, err := parseSchema(info)
	return err == nil && d.wanted(s.names())
}

// Decode decodes an event; ok is false if its kind is not wanted. It returns ErrFlood if too many are not, and ErrLimit
// if too many are.
func (d *Decoder) Decode(r Raw) (e Event, ok bool, err error) {
	k, err := d.kind(&r)
	if err != nil {
		return Event{}, false, fmt.Errorf("event %d version %d: %w", r.ID, r.Version, err)
	}
	if err := d.count(k, r.Time); err != nil || !k.wanted {
		return Event{}, false, err
	}
	e = Event{ID: r.ID, Time: r.Time, Fields: make([]Field, 0, len(k.schema.fields))}
	rest := r.Data
	for i := range k.schema.fields {
		p := &k.schema.fields[i]
		var f Field
		if f, rest, err = p.cut(rest); err != nil {
			return Event{}, false, fmt.Errorf("event %d version %d: field %q: %w", r.ID, r.Version, p.name, err)
		}
		f.Meaning = k.maps[p.mapName][f.Number]
		e.Fields = append(e.Fields, f)
	}
	return e, true, nil
}

// count counts an event of its second.
func (d *Decoder) count(k *kind, at time.Time) error {
	if second := at.Unix(); second != d.second {
		d.second, d.decoded, d.unwanted = second, 0, 0
	}
	if !k.wanted {
		if d.unwanted++; d.unwanted > maxUnwanted {
			return ErrFlood
		}
		return nil
	}
	if d.decoded++; d.decoded > maxWanted {
		return ErrLimit
	}
	return nil
}

// kind returns what is known of the kind of an event. After a failure the next event of the kind tries again.
func (d *Decoder) kind(r *Raw) (*kind, error) {
	key := [2]uint16{r.ID, uint16(r.Version)}
	if k := d.kinds[key]; k != nil {
		return k, nil
	}
	if len(d.kinds) == maxKinds {
		return nil, fmt.Errorf("the provider has more than %d kinds of events", maxKinds)
	}
	info, err := r.Describe()
	if err != nil {
		return nil, err
	}
	s, err := parseSchema(info)
	if err != nil {
		return nil, err
	}
	k := &kind{schema: *s, wanted: d.wanted(s.names()), maps: make(map[string]map[uint64]string)}
	for _, f := range s.fields {
		if f.mapName == "" || !k.wanted {
			continue
		}
		// Without the map the numbers still tell the values apart.
		if info, err := r.Map(f.mapName); err == nil {
			if values, err := parseMap(info); err == nil {
				k.maps[f.mapName] = values
			}
		}
	}
	d.kinds[key] = k
	return k, nil
}

// cut cuts the value of a field off.
func (p *property) cut(b []byte) (f Field, rest []byte, err error) {
	f.Name = p.name
	switch {
	case p.in == inUnicode && p.size == 0:
		f.Text, rest, err = cutUnicode(b)
		return f, rest, err
	case p.in == inANSI && p.size == 0:
		text, rest, ended := bytes.Cut(b, []byte{0})
		if !ended {
			return f, nil, errors.New("text does not end")
		}
		f.Text = strings.ToValidUTF8(string(text[:min(len(text), maxText)]), "?")
		return f, rest, nil
	}
	if len(b) < p.size {
		return f, nil, fmt.Errorf("%d bytes are left of %d", len(b), p.size)
	}
	f.Bytes, rest = bytes.Clone(b[:p.size]), b[p.size:]
	switch len(f.Bytes) {
	case 1:
		f.Number = uint64(f.Bytes[0])
	case 2:
		f.Number = uint64(binary.LittleEndian.Uint16(f.Bytes))
	case 4:
		f.Number = uint64(binary.LittleEndian.Uint32(f.Bytes))
	case 8:
		f.Number = binary.LittleEndian.Uint64(f.Bytes)
	}
	return f, rest, nil
}
