// SPDX-License-Identifier: Apache-2.0

package etw

import "encoding/binary"

// Config says which events a Session reads.
type Config struct {
	// Name is the name of the session on this host.
	Name string
	// Provider is the GUID of the provider, in braces.
	Provider string
	// Level is the highest level of events, and Keywords are those of which an event has one.
	Level    uint8
	Keywords uint64
	// Wanted reports whether events with these fields are wanted.
	Wanted func(fields []string) bool
	// IDs are the events of a provider that has no manifest on the host.
	IDs []uint16
}

// descriptor is EVENT_DESCRIPTOR as it is in memory.
type descriptor [16]byte

// maxDescriptors bounds the events of a manifest. VfpExt has some hundred.
const maxDescriptors = 4096

// parseDescriptors parses PROVIDER_EVENT_INFO.
func parseDescriptors(b []byte) (list []descriptor) {
	const head = 8
	if len(b) < head {
		return nil
	}
	for i := range min(int64(binary.LittleEndian.Uint32(b)), int64(len(b)-head)/int64(len(descriptor{})), maxDescriptors) {
		list = append(list, descriptor(b[head+i*16:][:16]))
	}
	return list
}
