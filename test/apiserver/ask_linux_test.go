// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// answer is the name of the server, and the client's address as the server sees it.
type answer struct {
	name string
	seen netip.Addr
}

// respond serves requests at an address by TCP, UDP and SCTP.
func respond(servers *traffic.Servers, ns *netns.NS, name string, at netip.AddrPort) error {
	return errors.Join(
		servers.TCP(ns, at, func(c net.Conn) {
			for lines := bufio.NewScanner(c); lines.Scan(); {
				c.Write(reply(name, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), lines.Text()))
			}
		}),
		servers.UDP(ns, at, func(client netip.AddrPort, question []byte) []byte {
			return reply(name, client.Addr(), string(question))
		}),
		servers.SCTP(ns, at, func(client netip.Addr) []byte { return reply(name, client, "") }))
}

// reply returns a line with the name, the address and the request.
func reply(name string, from netip.Addr, question string) []byte {
	return fmt.Appendf(nil, "%s %s %s\n", name, from, strings.TrimSpace(question))
}

// asker is a client that sends requests.
type asker struct {
	ns   *netns.NS
	from netip.Addr
}

// errSilence means that no answer came.
var errSilence = errors.New("silence")

// ask opens a flow and waits for the answer.
func (a asker) ask(p model.Protocol, to netip.AddrPort, patience time.Duration) (answer, error) {
	got, err := a.askOnce(p, to, patience)
	if err != nil && traffic.Silent(err) {
		err = errSilence
	}
	return got, err
}

func (a asker) askOnce(p model.Protocol, to netip.AddrPort, patience time.Duration) (answer, error) {
	if p == model.SCTP {
		line, err := a.flow(p, to).Init(patience)
		if err != nil {
			return answer{}, err
		}
		return parseAnswer(string(line))
	}
	c, err := a.open(p, to, patience)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	return exchange(c, patience)
}

func (a asker) flow(p model.Protocol, to netip.AddrPort) traffic.Flow {
	return traffic.Flow{NS: a.ns, From: a.from, To: to, Protocol: p}
}

// open opens a connection by TCP or UDP.
func (a asker) open(p model.Protocol, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	return a.flow(p, to).Dial(context.Background(), patience)
}

// exchange sends a request on a connection. It skips answers to earlier requests, because TCP retransmits them
// until they arrive.
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

// askAPI opens a flow to the API server, which returns neither a name nor the client's address.
func (a asker) askAPI(to netip.AddrPort, patience time.Duration) error {
	c, err := a.open(model.TCP, to, patience)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		err = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
	}
	if err != nil && traffic.Silent(err) {
		err = errSilence
	}
	return err
}
