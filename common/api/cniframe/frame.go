// SPDX-License-Identifier: Apache-2.0

package cniframe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Magic begins every frame, of every version.
const Magic = "ISTHMUS\n"

const (
	// version is the version of the frame format. Messages evolve as in protobuf: by fields that the
	// other side may not know.
	version = 1
	// headerSize is the length of the header, in bytes.
	headerSize = 24
	// MaxBody bounds a message, in bytes.
	MaxBody = 4 << 20
)

// Kind is the kind of message in a frame.
type Kind uint16

// Requests of the plugin and replies of the agent.
const (
	Add Kind = iota + 1
	Del
	Check
	GC
	Status

	Done    Kind = 0x100
	Refused Kind = 0x101
)

// ErrVersion reports a frame of another version.
var ErrVersion = errors.New("frame is of another version")

// Frame is one message of either side. On the wire, numbers are big-endian: Magic, version(2), kind(2),
// timeout in milliseconds(4), length of the body(4), zero(4), body.
type Frame struct {
	Kind Kind
	// Timeout is how long the sender waits for an answer; 0 in answers.
	Timeout time.Duration
	// Body is a message in JSON, of at most MaxBody bytes.
	Body []byte
}

// Write sends a frame in one write.
func (f Frame) Write(w io.Writer) error {
	if len(f.Body) > MaxBody {
		return fmt.Errorf("message has %d bytes: at most %d are allowed", len(f.Body), MaxBody)
	}
	// Round up: a timeout below one millisecond must not become 0, which means none.
	timeout := min((max(f.Timeout, 0)+time.Millisecond-1)/time.Millisecond, math.MaxUint32)
	b := append(make([]byte, 0, headerSize+len(f.Body)), Magic...)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, uint16(f.Kind))
	b = binary.BigEndian.AppendUint32(b, uint32(timeout))
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Body)))
	b = binary.BigEndian.AppendUint32(b, 0)
	_, err := w.Write(append(b, f.Body...))
	return err
}

// Read receives a frame. The error is ErrVersion if the header is of another version; Read then reads no
// further.
func Read(r io.Reader) (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, fmt.Errorf("read header: %w", err)
	}
	if string(h[:len(Magic)]) != Magic {
		return Frame{}, fmt.Errorf("%q is not the beginning of a frame", h[:len(Magic)])
	}
	if v := binary.BigEndian.Uint16(h[8:]); v != version {
		return Frame{}, fmt.Errorf("%w: %d, not %d", ErrVersion, v, version)
	}
	f := Frame{Kind: Kind(binary.BigEndian.Uint16(h[10:])), Timeout: time.Duration(binary.BigEndian.Uint32(h[12:])) * time.Millisecond}
	length := binary.BigEndian.Uint32(h[16:])
	if length > MaxBody || binary.BigEndian.Uint32(h[20:]) != 0 {
		return Frame{}, fmt.Errorf("header % x is not valid", h)
	}
	// Memory grows with the received bytes, not with the announced length.
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(length)); err != nil {
		return Frame{}, fmt.Errorf("read message: %w", err)
	}
	f.Body = body.Bytes()
	return f, nil
}
