// SPDX-License-Identifier: Apache-2.0

package cnicall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Magic begins every frame, of every version. It is no beginning of HTTP/2,
// which is spoken on the same socket.
const Magic = "ISTHMUS\n"

const (
	// version is that of the frame. Messages change as protobuf's do: by fields
	// that the other side may not know.
	version = 1
	// headerSize is as long as the preface of HTTP/2: an agent that knows no
	// frames has read enough to close the connection.
	headerSize = 24
	// MaxBody bounds a message, in bytes.
	MaxBody = 4 << 20
)

// Kind says what a frame holds.
type Kind uint16

// What the plugin asks, and how the agent answers.
const (
	Add Kind = iota + 1
	Del
	Check
	GC
	Status

	Done    Kind = 0x100
	Refused Kind = 0x101
)

// ErrVersion is the error about a frame of another version.
var ErrVersion = errors.New("frame is of another version")

// Frame is what either side sends. On the wire, numbers with the high byte
// first: Magic, version(2), kind(2), timeout in milliseconds(4), length of the
// body(4), zero(4), body.
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
		return fmt.Errorf("message has %d bytes: at most %d are possible", len(f.Body), MaxBody)
	}
	// Rounded up: no limit must not become of a short one.
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

// Read receives a frame. The error is ErrVersion if the header is of another
// version, of which nothing more is read.
func Read(r io.Reader) (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, fmt.Errorf("read header: %w", err)
	}
	if string(h[:len(Magic)]) != Magic {
		return Frame{}, fmt.Errorf("%q begins no frame", h[:len(Magic)])
	}
	if v := binary.BigEndian.Uint16(h[8:]); v != version {
		return Frame{}, fmt.Errorf("%w: %d, not %d", ErrVersion, v, version)
	}
	f := Frame{Kind: Kind(binary.BigEndian.Uint16(h[10:])), Timeout: time.Duration(binary.BigEndian.Uint32(h[12:])) * time.Millisecond}
	length := binary.BigEndian.Uint32(h[16:])
	if length > MaxBody || binary.BigEndian.Uint32(h[20:]) != 0 {
		return Frame{}, fmt.Errorf("header % x is not valid", h)
	}
	// The memory grows with what comes, not with what is promised.
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(length)); err != nil {
		return Frame{}, fmt.Errorf("read message: %w", err)
	}
	f.Body = body.Bytes()
	return f, nil
}
