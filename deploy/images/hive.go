// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"slices"
)

// registry is where a Windows image without a base image has its registry hives.
const registry = "Files/Windows/System32/config"

// The parts of a hive: a header, and one bin with cells. Offsets of cells are relative to the bin.
const (
	hiveBlock = 4096
	rootCell  = 0x20 // after the header of the bin
	rootSize  = 0x58
	skCell    = rootCell + rootSize
	skSize    = 0x80
	freeCell  = skCell + skSize
	// written is 1970-01-01 in units of 100 ns since 1601.
	written = 116444736000000000
	none    = 0xFFFFFFFF
)

// emptyHive returns a registry hive with a root key that has neither keys nor values. Windows Server 2025 refuses hives that are empty
// files. The format is version 1.3, as RegSaveKey writes it.
func emptyHive() []byte {
	b := make([]byte, hiveBlock, 2*hiveBlock)
	copy(b, "regf")
	le := binary.LittleEndian
	for at, v := range map[int]uint32{4: 1, 8: 1, 20: 1, 24: 3, 32: 1, 36: rootCell, 40: hiveBlock, 44: 1} {
		le.PutUint32(b[at:], v) // both sequence numbers, version 1.3, format, root, length of the bins, clustering
	}
	le.PutUint64(b[12:], written)
	le.PutUint32(b[508:], hiveChecksum(b))
	return append(b, bin()...)
}

// hiveChecksum is that of the first 508 bytes.
func hiveChecksum(b []byte) (sum uint32) {
	for at := 0; at < 508; at += 4 {
		sum ^= binary.LittleEndian.Uint32(b[at:])
	}
	return sum
}

// bin returns the bin with the root key, its security descriptor and the free rest.
func bin() []byte {
	b := make([]byte, hiveBlock)
	copy(b, "hbin")
	le := binary.LittleEndian
	le.PutUint32(b[8:], hiveBlock)
	le.PutUint64(b[20:], written)

	// Sizes of cells in use are negative.
	root := le.AppendUint32(nil, ^uint32(rootSize-1))
	root = append(root, "nk"...)
	root = le.AppendUint16(root, 0x2C) // the root of a hive, cannot be deleted, name of single bytes
	root = le.AppendUint64(root, written)
	for _, v := range []uint32{0, none, 0, 0, none, none, 0, none, skCell, none, 0, 0, 0, 0, 0} {
		root = le.AppendUint32(root, v)
	}
	root = append(le.AppendUint16(root, uint16(len("ROOT"))), 0, 0)
	copy(b[rootCell:], append(root, "ROOT"...))

	access := descriptor()
	sk := append(le.AppendUint32(nil, ^uint32(skSize-1)), "sk\x00\x00"...)
	for _, v := range []uint32{skCell, skCell, 1, uint32(len(access))} { // next, previous, users, size
		sk = le.AppendUint32(sk, v)
	}
	copy(b[skCell:], append(sk, access...))
	le.PutUint32(b[freeCell:], hiveBlock-freeCell)
	return b
}

// descriptor is "O:BAG:SYD:(A;CI;KA;;;BA)(A;CI;KA;;;SY)" in binary form.
func descriptor() []byte {
	administrators := []byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0}
	system := []byte{1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0}
	var entries []byte
	for _, sid := range [][]byte{administrators, system} {
		entries = append(entries, 0, 2, byte(8+len(sid)), 0, 0x3F, 0, 0x0F, 0)
		entries = append(entries, sid...)
	}
	list := append([]byte{2, 0, byte(8 + len(entries)), 0, 2, 0, 0, 0}, entries...)
	const header = 20
	owner := byte(header + len(list))
	return slices.Concat([]byte{1, 0, 0x04, 0x80, owner, 0, 0, 0, owner + byte(len(administrators)), 0, 0, 0, 0, 0, 0, 0, header, 0, 0, 0},
		list, administrators, system)
}
