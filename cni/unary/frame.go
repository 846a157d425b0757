// SPDX-License-Identifier: Apache-2.0

package unary

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Types of frames and their flags (RFC 9113, section 6).
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindow       = 0x8
	frameContinuation = 0x9

	flagEndStream  = 0x1 // of data and headers
	flagAck        = 0x1 // of settings and pings
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20

	settingPush          = 0x2
	settingInitialWindow = 0x4

	// maxFrame is the longest payload that both sides take without having said so.
	maxFrame = 16384
	// firstWindow is what may be sent before the other side has said so, in bytes.
	firstWindow = 65535
	maxWindow   = 1<<31 - 1
	// number is that of the only stream.
	number = 1
)

// frame is a frame as it was read.
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

func (f frame) has(flag byte) bool { return f.flags&flag != 0 }

// appendFrame appends a frame in wire format.
func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// readFrame reads the next frame.
func readFrame(r io.Reader) (frame, error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	if length > maxFrame {
		return frame{}, fmt.Errorf("frame of %d bytes, %d are allowed: %w", length, maxFrame, errProtocol)
	}
	f := frame{kind: head[3], flags: head[4], stream: binary.BigEndian.Uint32(head[5:]) &^ (1 << 31), payload: make([]byte, length)}
	_, err := io.ReadFull(r, f.payload)
	return f, err
}

// content is the payload of data or headers without padding and priority.
func (f frame) content() ([]byte, error) {
	b, padding := f.payload, 0
	if f.has(flagPadded) {
		if len(b) == 0 {
			return nil, fmt.Errorf("padded frame without a length: %w", errProtocol)
		}
		padding, b = int(b[0]), b[1:]
	}
	if f.kind == frameHeaders && f.has(flagPriority) {
		if len(b) < 5 {
			return nil, fmt.Errorf("headers without their priority: %w", errProtocol)
		}
		b = b[5:]
	}
	if padding > len(b) {
		return nil, fmt.Errorf("more padding than payload: %w", errProtocol)
	}
	return b[:len(b)-padding], nil
}

// word reads the big-endian number that a frame begins with.
func (f frame) word() (uint32, error) {
	if len(f.payload) < 4 {
		return 0, fmt.Errorf("frame of type %d has %d bytes: %w", f.kind, len(f.payload), errProtocol)
	}
	return binary.BigEndian.Uint32(f.payload), nil
}
