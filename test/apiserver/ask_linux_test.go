// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// An answer is the name of who answered, and from where the question came as
// that one sees it.
type answer struct {
	name string
	seen netip.Addr
}

// responders answer until they are closed.
type responders struct {
	mu  sync.Mutex
	all []io.Closer
}

func (r *responders) add(c io.Closer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, c)
}

func (r *responders) close() {
	for _, c := range r.all {
		c.Close()
	}
}

// respond answers at an address by TCP, UDP and SCTP.
func (r *responders) respond(ns *netns.NS, name string, at netip.AddrPort) error {
	return ns.Do(func() error {
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		r.add(ln)
		pc, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		r.add(pc)
		raw, err := listenSCTP(at.Addr())
		if err != nil {
			return err
		}
		r.add(raw)
		go respondTCP(ln, name)
		go respondUDP(pc, name)
		go respondSCTP(raw, name, at.Port())
		return nil
	})
}

// reply is a line with name, address and the question.
func reply(name string, from net.Addr, question string) []byte {
	host := from.String()
	if a, err := netip.ParseAddrPort(host); err == nil {
		host = a.Addr().Unmap().String()
	}
	return fmt.Appendf(nil, "%s %s %s\n", name, host, strings.TrimSpace(question))
}

func respondTCP(ln *net.TCPListener, name string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			lines := bufio.NewScanner(c)
			for lines.Scan() {
				c.Write(reply(name, c.RemoteAddr(), lines.Text()))
			}
		}()
	}
}

func respondUDP(pc *net.UDPConn, name string) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			pc.WriteTo(reply(name, from, string(buf[:n])), from)
		}
	}
}

// SCTP is spoken by hand, as far as connection tracking looks (RFC 9260): INIT
// is answered by INIT ACK, which carries the answer as its cookie.
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7
	sctpHeader  = 12
	sctpChunk   = 20
)

func listenSCTP(at netip.Addr) (*net.IPConn, error) {
	network := "ip4:132"
	if at.Is6() {
		network = "ip6:132"
	}
	return net.ListenIP(network, &net.IPAddr{IP: at.AsSlice()})
}

// sctpPacket is a packet of one chunk. tag verifies, init is the sender's own.
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

func respondSCTP(pc *net.IPConn, name string, port uint16) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < sctpHeader+sctpChunk || buf[sctpHeader] != sctpInit || binary.BigEndian.Uint16(buf[2:]) != port {
			continue
		}
		tag := binary.BigEndian.Uint32(buf[sctpHeader+4:])
		pc.WriteTo(sctpPacket(sctpInitAck, port, binary.BigEndian.Uint16(buf), tag, rand.Uint32()|1, reply(name, from, "")), from)
	}
}

// asker is where questions come from.
type asker struct {
	ns   *netns.NS
	from netip.Addr
}

// errSilence means that nobody answered.
var errSilence = errors.New("silence")

// ask opens a flow and waits for the answer.
func (a asker) ask(p model.Protocol, to netip.AddrPort, patience time.Duration) (got answer, err error) {
	err = a.ns.Do(func() error {
		if p == model.SCTP {
			got, err = a.askSCTP(to, patience)
			return err
		}
		c, err := a.open(p, to, patience)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err = exchange(c, patience)
		return err
	})
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) {
		err = errSilence
	}
	return got, err
}

// open connects; the thread has to be in the asker's namespace.
func (a asker) open(p model.Protocol, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	if p == model.UDP {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.from, 0))
		return d.DialContext(context.Background(), "udp", to.String())
	}
	d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.from, 0))
	return d.DialContext(context.Background(), "tcp", to.String())
}

// exchange asks on a connection. Answers to earlier questions are passed over:
// TCP sends a question again until it gets through.
func exchange(c net.Conn, patience time.Duration) (got answer, err error) {
	c.SetDeadline(time.Now().Add(patience))
	question := strconv.FormatUint(rand.Uint64(), 36)
	if _, err := c.Write([]byte(question + "\n")); err != nil {
		return got, err
	}
	buf := make([]byte, 2048)
	for rest := ""; ; {
		n, err := c.Read(buf)
		if err != nil {
			return got, err
		}
		rest += string(buf[:n])
		for line, more, ok := strings.Cut(rest, "\n"); ok; line, more, ok = strings.Cut(rest, "\n") {
			rest = more
			if strings.HasSuffix(line, " "+question) {
				return parseAnswer(line)
			}
		}
	}
}

func parseAnswer(line string) (got answer, err error) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return got, fmt.Errorf("an answer of another kind: %q", line)
	}
	got.name = words[0]
	got.seen, err = netip.ParseAddr(words[1])
	return got, err
}

func (a asker) askSCTP(to netip.AddrPort, patience time.Duration) (got answer, err error) {
	pc, err := listenSCTP(a.from)
	if err != nil {
		return got, err
	}
	defer pc.Close()
	pc.SetDeadline(time.Now().Add(patience))
	port, tag := uint16(32768+rand.IntN(28000)), rand.Uint32()|1
	if _, err := pc.WriteTo(sctpPacket(sctpInit, port, to.Port(), 0, tag, nil), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return got, err
	}
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return got, err
		}
		// Raw sockets hear every packet of the protocol.
		sender, _ := netip.ParseAddr(from.String())
		if n < sctpHeader+sctpChunk+4 || buf[sctpHeader] != sctpInitAck || binary.BigEndian.Uint16(buf[2:]) != port || sender.Unmap() != to.Addr() {
			continue
		}
		line, _, _ := strings.Cut(string(buf[sctpHeader+sctpChunk+4:n]), "\n")
		return parseAnswer(line)
	}
}

// askAPI opens a flow to the API server, which has no name in the sense of
// answers and does not tell what it sees.
func (a asker) askAPI(to netip.AddrPort, patience time.Duration) error {
	err := a.ns.Do(func() error {
		c, err := a.open(model.TCP, to, patience)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
	})
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		err = errSilence
	}
	return err
}
