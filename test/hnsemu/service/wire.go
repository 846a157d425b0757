// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"unicode/utf16"
)

// The wire between a DLL and the service, all numbers little-endian, strings as
// their length in bytes (32 bits) and UTF-16:
//
//	once:     16 bytes that name the client process
//	request:  size(4) handle(8) GUID(16) op arg arg arg
//	response: size(4) HRESULT(4) handle(8) output error, length ^0 for none
//
// size counts what follows it. The same is said in dll/wire.h.
const (
	clientSize = 16
	guidSize   = 16
	absent     = ^uint32(0)
	// maxFrame is the maximum size of a request in bytes. An endpoint with thousands of ACLs has a
	// few megabytes.
	maxFrame = 64 << 20
)

// clients counts the connections of every client.
type clients struct {
	mu    sync.Mutex
	count map[string]int
}

// Serve answers the DLLs that connect until the context ends. It closes the handles of a client
// with its last connection.
func (s *Service) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	known := &clients{count: make(map[string]int)}
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a client: %w", err)
		}
		open.Go(func() {
			end := context.AfterFunc(ctx, func() { conn.Close() })
			defer end()
			defer conn.Close()
			if err := s.converse(conn, known); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
				s.config.Log.Warn("a client is cut off", "error", err)
			}
		})
	}
}

func (s *Service) converse(conn net.Conn, known *clients) error {
	r := bufio.NewReader(conn)
	var name [clientSize]byte
	if _, err := io.ReadFull(r, name[:]); err != nil {
		return err
	}
	client := hex.EncodeToString(name[:])
	known.mu.Lock()
	known.count[client]++
	known.mu.Unlock()
	defer func() {
		known.mu.Lock()
		known.count[client]--
		last := known.count[client] == 0
		if last {
			delete(known.count, client)
		}
		known.mu.Unlock()
		if last {
			s.Disconnect(client)
		}
	}()
	for {
		c, err := readCall(r)
		if err != nil {
			return err
		}
		if _, err := conn.Write(encodeAnswer(s.Do(client, c))); err != nil {
			return err
		}
	}
}

var errFrame = errors.New("request is malformed")

func readCall(r io.Reader) (Call, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return Call{}, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxFrame {
		return Call{}, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return Call{}, err
	}
	return decodeCall(b)
}

func decodeCall(b []byte) (Call, error) {
	if len(b) < 8+guidSize {
		return Call{}, fmt.Errorf("%w: %d bytes", errFrame, len(b))
	}
	c := Call{Handle: binary.LittleEndian.Uint64(b), GUID: guidText(b[8 : 8+guidSize])}
	b = b[8+guidSize:]
	for _, into := range []*string{&c.Op, &c.Args[0], &c.Args[1], &c.Args[2]} {
		if len(b) < 4 {
			return Call{}, fmt.Errorf("%w: cut short", errFrame)
		}
		n := binary.LittleEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) || n%2 != 0 {
			return Call{}, fmt.Errorf("%w: a string of %d bytes in %d", errFrame, n, len(b))
		}
		units := make([]uint16, n/2)
		for i := range units {
			units[i] = binary.LittleEndian.Uint16(b[2*i:])
		}
		*into, b = string(utf16.Decode(units)), b[n:]
	}
	return c, nil
}

func encodeAnswer(a Answer) []byte {
	b := make([]byte, 4, 64)
	b = binary.LittleEndian.AppendUint32(b, a.Result)
	b = binary.LittleEndian.AppendUint64(b, a.Handle)
	for _, text := range []*string{a.Output, a.Error} {
		if text == nil {
			b = binary.LittleEndian.AppendUint32(b, absent)
			continue
		}
		units := utf16.Encode([]rune(*text))
		b = binary.LittleEndian.AppendUint32(b, uint32(2*len(units)))
		for _, u := range units {
			b = binary.LittleEndian.AppendUint16(b, u)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// guidText formats a GUID as Windows does: the first three fields are little-endian numbers.
func guidText(b []byte) string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]),
		binary.LittleEndian.Uint16(b[6:]), b[8:10], b[10:16])
}
