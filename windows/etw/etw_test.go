// SPDX-License-Identifier: Apache-2.0

package etw

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
)

// column is a field of a test's manifest.
type column struct {
	name         string
	flags        uint32
	in           uint16
	count, bytes uint16
	values       string
}

func utf(s string) (b []byte) {
	for _, u := range append(utf16.Encode([]rune(s)), 0) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

// info encodes TRACE_EVENT_INFO.
func info(columns ...column) []byte {
	b := make([]byte, infoFields+propertySize*len(columns))
	binary.LittleEndian.PutUint32(b[infoCount:], uint32(len(columns)))
	binary.LittleEndian.PutUint32(b[infoTopLevel:], uint32(len(columns)))
	for i, c := range columns {
		p := infoFields + propertySize*i
		binary.LittleEndian.PutUint32(b[p:], c.flags)
		binary.LittleEndian.PutUint32(b[p+propertyName:], uint32(len(b)))
		b = append(b, utf(c.name)...)
		binary.LittleEndian.PutUint16(b[p+propertyIn:], c.in)
		if c.values != "" {
			binary.LittleEndian.PutUint32(b[p+propertyMap:], uint32(len(b)))
			b = append(b, utf(c.values)...)
		}
		binary.LittleEndian.PutUint16(b[p+propertyCount:], c.count)
		binary.LittleEndian.PutUint16(b[p+propertyLength:], c.bytes)
	}
	return b
}

// mapInfoOf encodes EVENT_MAP_INFO of values from 0 on.
func mapInfoOf(texts ...string) []byte {
	b := make([]byte, mapEntries+8*len(texts))
	binary.LittleEndian.PutUint32(b[mapFlags:], flagValueMap)
	binary.LittleEndian.PutUint32(b[mapCount:], uint32(len(texts)))
	for i, text := range texts {
		binary.LittleEndian.PutUint32(b[mapEntries+8*i:], uint32(len(b)))
		binary.LittleEndian.PutUint32(b[mapEntries+8*i+4:], uint32(i))
		b = append(b, utf(text)...)
	}
	return b
}

func rawOf(info, data []byte) Raw {
	return Raw{ID: 7, Time: time.Unix(5, 0), Data: data, Describe: func() ([]byte, error) { return info, nil },
		Map: func(name string) ([]byte, error) {
			if name != "kinds" {
				return nil, errors.New("no such map")
			}
			return mapInfoOf("none", "Block "), nil
		}}
}

func all([]string) bool { return true }

func TestDecode(t *testing.T) {
	d := NewDecoder(func(names []string) bool { return slices.Contains(names, "text") })
	about := info(column{"kind", 0, 4, 1, 1, "kinds"}, column{"text", 0, 1, 1, 0, ""}, column{"address", 0, 8, 1, 4, ""}, column{"port", 0, 6, 1, 2, "lost"},
		column{"ansi", 0, 2, 1, 0, ""}, column{"v6", 0, 14, 1, 16, ""}, column{"fixed", 0, 1, 1, 2, ""}, column{"truth", 0, 13, 1, 0, ""}, column{"large", 0, 10, 1, 8, ""})
	data := append([]byte{1}, utf("päd")...)
	data = append(data, 10, 244, 1, 2, 0x01, 0xBB)
	data = append(data, "ansi\x00"...)
	data = append(data, make([]byte, 16)...)
	data = append(data, 'a', 0, 'b', 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1)
	want := map[string]Field{
		"kind": {Number: 1, Meaning: "Block ", Bytes: []byte{1}}, "text": {Text: "päd"}, "address": {Number: 0x0201F40A, Bytes: []byte{10, 244, 1, 2}},
		"port": {Number: 0xBB01, Bytes: []byte{1, 0xBB}}, "ansi": {Text: "ansi"}, "v6": {Bytes: make([]byte, 16)}, "fixed": {Number: 'a' | 'b'<<16, Bytes: []byte("a\x00b\x00")},
		"truth": {Number: 1, Bytes: []byte{1, 0, 0, 0}}, "large": {Number: 1<<56 + 9, Bytes: []byte{9, 0, 0, 0, 0, 0, 0, 1}},
	}
	for range 2 { // the second time from what is known
		e, ok, err := d.Decode(rawOf(about, data))
		if err != nil || !ok || len(e.Fields) != len(want) || e.ID != 7 || !e.Time.Equal(time.Unix(5, 0)) || e.Field("other") != nil {
			t.Fatalf("%+v, %t, %v", e, ok, err)
		}
		for name, w := range want {
			w.Name = name
			if got := e.Field(name); got == nil || fmt.Sprint(*got) != fmt.Sprint(w) {
				t.Errorf("got %+v, want %+v", got, w)
			}
		}
	}
	if _, ok, err := d.Decode(Raw{ID: 8, Describe: func() ([]byte, error) { return info(column{"x", 0, 4, 1, 1, ""}), nil }}); ok || err != nil {
		t.Errorf("an event that is not wanted: %t, %v", ok, err)
	}
}

// TestMalformed: what does not fit is an error, and no event.
func TestMalformed(t *testing.T) {
	one := info(column{"text", 0, 1, 1, 0, ""})
	changed := func(at int, value uint32) []byte {
		b := slices.Clone(one)
		binary.LittleEndian.PutUint32(b[at:], value)
		return b
	}
	for name, c := range map[string]struct {
		info, data []byte
		want       string
	}{
		"no description":       {nil, nil, "0 bytes"},
		"long description":     {make([]byte, maxInfo+1), nil, "65537 bytes"},
		"fields beyond":        {changed(infoCount, 2), nil, ""},
		"many fields":          {changed(infoCount, 1<<31), nil, "fields"},
		"more than all":        {changed(infoTopLevel, 3), nil, "has 3 fields of 1"},
		"name beyond":          {changed(infoFields+propertyName, 1<<31), nil, "name of field 0: offset"},
		"name without end":     {changed(infoFields+propertyName, uint32(len(one)-1)), nil, "text does not end"},
		"map beyond":           {changed(infoFields+propertyMap, 9999), nil, "map of field"},
		"text without end":     {one, []byte{65, 0, 66}, `field "text": text does not end`},
		"ansi without end":     {info(column{"a", 0, 2, 1, 0, ""}), []byte("abc"), "text does not end"},
		"number cut short":     {info(column{"n", 0, 8, 1, 4, ""}), []byte{1, 2, 3}, "3 bytes are left of 4"},
		"binary cut short":     {info(column{"b", 0, 14, 1, 60000, ""}), []byte{1}, "1 bytes are left of 60000"},
		"unicode of 64k units": {info(column{"u", 0, 1, 1, 65535, ""}), []byte{1}, "1 bytes are left of 131070"},
	} {
		_, ok, err := NewDecoder(all).Decode(rawOf(c.info, c.data))
		if name == "fields beyond" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if ok || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %t, %v, want %q", name, ok, err, c.want)
		}
	}
}

// TestUnknownField: a field whose size is not known ends the event; those before it are decoded.
func TestUnknownField(t *testing.T) {
	for name, c := range map[string]column{
		"structure":         {"x", flagStruct, 4, 1, 1, ""},
		"length in a field": {"x", flagParamLength, 14, 1, 0, ""},
		"count in a field":  {"x", flagParamCount, 4, 1, 1, ""},
		"array":             {"x", 0, 4, 3, 1, ""},
		"security id":       {"x", 0, 19, 1, 0, ""},
		"large number":      {"x", 0, 8, 1, 200, ""},
		"binary of no size": {"x", 0, 14, 1, 0, ""},
	} {
		e, ok, err := NewDecoder(all).Decode(rawOf(info(column{"first", 0, 4, 1, 1, ""}, c, column{"last", 0, 4, 1, 1, ""}), []byte{3, 4, 5}))
		if err != nil || !ok || len(e.Fields) != 1 || e.Fields[0].Number != 3 {
			t.Errorf("%s: %+v, %t, %v", name, e, ok, err)
		}
	}
}

// TestLongText: of long text the beginning is kept, and what follows is decoded.
func TestLongText(t *testing.T) {
	data := append(utf(strings.Repeat("x", 3*maxText)), 9)
	e, ok, err := NewDecoder(all).Decode(rawOf(info(column{"t", 0, 1, 1, 0, ""}, column{"n", 0, 4, 1, 1, ""}), data))
	if err != nil || !ok || len(e.Field("t").Text) != maxText || e.Field("n").Number != 9 {
		t.Errorf("%d units, %t, %v", len(e.Field("t").Text), ok, err)
	}
}

// TestKinds: versions of an event differ, a failed description is read again, and there is a limit.
func TestKinds(t *testing.T) {
	d := NewDecoder(all)
	r := rawOf(info(column{"a", 0, 4, 1, 1, ""}), []byte{1})
	failing := r
	failing.Describe = func() ([]byte, error) { return nil, errors.New("busy") }
	if _, _, err := d.Decode(failing); err == nil || !strings.Contains(err.Error(), "event 7 version 0: busy") {
		t.Error(err)
	}
	if e, ok, err := d.Decode(r); !ok || err != nil || e.Fields[0].Name != "a" {
		t.Errorf("after a failure: %+v, %v", e, err)
	}
	r.Version, r.Describe = 1, func() ([]byte, error) { return info(column{"b", 0, 4, 1, 1, ""}), nil }
	if e, ok, err := d.Decode(r); !ok || err != nil || e.Fields[0].Name != "b" {
		t.Errorf("the next version: %+v, %v", e, err)
	}
	for id := range uint16(maxKinds) {
		r.ID = 100 + id
		if _, _, err := d.Decode(r); err != nil != (len(d.kinds) == maxKinds && id >= maxKinds-2) {
			t.Fatalf("kind %d of %d: %v", id, len(d.kinds), err)
		}
	}
}

// TestFlood: a second with too many events that are not wanted is the end, but not many seconds with some.
func TestFlood(t *testing.T) {
	d := NewDecoder(func([]string) bool { return false })
	r := rawOf(info(), nil)
	for second := range 3 {
		r.Time = time.Unix(int64(second), 0)
		for range maxUnwanted {
			if _, ok, err := d.Decode(r); ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
	if _, _, err := d.Decode(r); !errors.Is(err, ErrFlood) {
		t.Errorf("after %d events in a second: %v", maxUnwanted+1, err)
	}
}

// TestLimit: of wanted events too many in a second are not decoded, and the next second begins with a full budget.
func TestLimit(t *testing.T) {
	d := NewDecoder(all)
	r := rawOf(info(column{"a", 0, 4, 1, 1, ""}), []byte{1})
	for second := range 2 {
		r.Time = time.Unix(int64(second), 0)
		for range maxWanted {
			if _, ok, err := d.Decode(r); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if _, ok, err := d.Decode(r); ok || !errors.Is(err, ErrLimit) {
			t.Errorf("event %d of a second: %t, %v", maxWanted+1, ok, err)
		}
	}
}

func TestDescriptors(t *testing.T) {
	b := binary.LittleEndian.AppendUint32(nil, 1<<31) // more than there is room for
	b = append(b, make([]byte, 4+2*16+15)...)
	b[8], b[24] = 101, 102
	if list := parseDescriptors(b); len(list) != 2 || list[0][0] != 101 || list[1][0] != 102 {
		t.Errorf("descriptors %v", list)
	}
	if list := parseDescriptors(b[:7]); list != nil {
		t.Errorf("of 7 bytes: %v", list)
	}
}

// TestQueue: a reader that is slow loses events, which are counted; the others come in order, and the last after the
// end too.
func TestQueue(t *testing.T) {
	q := NewQueue()
	for i := range queueSize + 3 {
		q.Put(Event{ID: uint16(i)})
	}
	if q.Lost() != 3 {
		t.Errorf("%d events lost, want 3", q.Lost())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	next := 0
	read := func(list []Event) {
		for _, e := range list {
			if int(e.ID) != next {
				t.Fatalf("event %d, want %d", e.ID, next)
			}
			next++
		}
	}
	q.Drain(ctx, read)
	if next != queueSize {
		t.Errorf("%d events read, want %d", next, queueSize)
	}
	next = 0
	ctx, cancel = context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.Drain(ctx, func(list []Event) {
			read(list)
			if next == 2 {
				cancel()
			}
		})
	}()
	q.Put(Event{ID: 0})
	q.Put(Event{ID: 1})
	<-done
}

func FuzzDecode(f *testing.F) {
	f.Add(info(column{"kind", 0, 4, 1, 1, "kinds"}, column{"text", 0, 1, 1, 0, ""}, column{"v6", 0, 14, 1, 16, ""}), []byte("\x01a\x00\x00\x000123456789abcdef"), mapInfoOf("a", "b"))
	f.Add([]byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, info, data, values []byte) {
		r := rawOf(info, data)
		r.Map = func(string) ([]byte, error) { return values, nil }
		e, ok, err := NewDecoder(all).Decode(r)
		if !ok && err == nil {
			t.Fatal("neither an event nor an error")
		}
		if len(e.Fields) > maxFields {
			t.Fatalf("%d fields", len(e.Fields))
		}
		total := 0
		for _, f := range e.Fields {
			total += len(f.Bytes)
		}
		if total > len(data) {
			t.Fatalf("%d bytes in fields of %d", total, len(data))
		}
		parseDescriptors(data)
	})
}
