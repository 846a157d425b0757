// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// This is the part of SCTP that policy and connection tracking read (RFC 9260): the answer to INIT is INIT ACK,
// which carries the greeting as its cookie.
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7
	sctpHeader  = 12
	sctpChunk   = 20
)

// within calls f in a namespace, which may be nil for that of this process.
func within(ns *netns.NS, f func() error) error {
	if ns == nil {
		return f()
	}
	return ns.Do(f)
}

// SCTP answers each INIT to the port with an INIT ACK that carries the answer. A nil namespace is that of this
// process.
func (s *Servers) SCTP(ns *netns.NS, at netip.AddrPort, answer func(client netip.Addr) []byte) error {
	var pc *net.IPConn
	err := within(ns, func() (err error) {
		pc, err = listenSCTP(at.Addr())
		return err
	})
	if err != nil {
		return err
	}
	arrived := s.add(pc, at, model.SCTP)
	go func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := pc.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n < sctpHeader+sctpChunk || buf[sctpHeader] != sctpInit || binary.BigEndian.Uint16(buf[2:]) != at.Port() {
				continue
			}
			arrived.Add(1)
			client, _ := netip.ParseAddr(from.String())
			tag := binary.BigEndian.Uint32(buf[sctpHeader+4:])
			pc.WriteTo(sctpPacket(sctpInitAck, at.Port(), binary.BigEndian.Uint16(buf), tag, rand.Uint32()|1, answer(client.Unmap())), from)
		}
	}()
	return nil
}

// initSCTP sends an INIT and returns the cookie of the INIT ACK. Call it in the client's namespace. Port 0 is any.
func initSCTP(at, to netip.AddrPort, patience time.Duration) ([]byte, error) {
	pc, err := listenSCTP(at.Addr())
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	pc.SetWriteDeadline(time.Now().Add(sending))
	port, tag := cmp.Or(at.Port(), freshPort()), rand.Uint32()|1
	if _, err := pc.WriteTo(sctpPacket(sctpInit, port, to.Port(), 0, tag, nil), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return nil, err
	}
	pc.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return nil, err
		}
		// A raw socket receives every packet of the protocol.
		sender, _ := netip.ParseAddr(from.String())
		if n < sctpHeader+sctpChunk || buf[sctpHeader] != sctpInitAck || binary.BigEndian.Uint16(buf[2:]) != port || sender.Unmap() != to.Addr() {
			continue
		}
		if n < sctpHeader+sctpChunk+4 {
			return nil, nil
		}
		length := int(binary.BigEndian.Uint16(buf[sctpHeader+sctpChunk+2:]))
		return buf[sctpHeader+sctpChunk+4 : min(n, sctpHeader+sctpChunk+length)], nil
	}
}

func listenSCTP(at netip.Addr) (*net.IPConn, error) {
	network := "ip4:132"
	if at.Is6() {
		network = "ip6:132"
	}
	return net.ListenIP(network, &net.IPAddr{IP: at.AsSlice()})
}

// sctpPacket is a packet of one chunk. tag is the verification tag, init the sender's own.
func sctpPacket(kind byte, src, dst uint16, tag, init uint32, cookie []byte) []byte {
	p := make([]byte, sctpHeader+sctpChunk)
	binary.BigEndian.PutUint16(p, src)
	binary.BigEndian.PutUint16(p[2:], dst)
	binary.BigEndian.PutUint32(p[4:], tag)
	chunk := p[sctpHeader:]
	chunk[0] = kind
	binary.BigEndian.PutUint32(chunk[4:], init)
	binary.BigEndian.PutUint32(chunk[8:], 65536) // window
	chunk[13], chunk[15] = 1, 1                  // streams
	length := sctpChunk
	if cookie != nil {
		length += 4 + len(cookie)
		p = append(p, 0, sctpCookie, 0, byte(4+len(cookie)))
		p = append(p, cookie...)
		for len(p)%4 != 0 {
			p = append(p, 0)
		}
	}
	binary.BigEndian.PutUint16(p[sctpHeader+2:], uint16(length))
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}
