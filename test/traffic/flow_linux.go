// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Source ports of UDP and SCTP flows. Servers and the kernel use others.
const firstClientPort, clientPorts = 10240, 19760

var opened atomic.Uint32

// freshPort returns the source port that was longest unused. The kernel, and chance, may choose one whose flow is
// still tracked. The packet then opens no new flow, and no verdict on a new flow is counted.
func freshPort() uint16 {
	return uint16(firstClientPort + opened.Add(1)%clientPorts)
}

// Flow is a flow that a client opens in a namespace.
type Flow struct {
	NS       *netns.NS
	From     netip.Addr // if invalid, the kernel chooses
	FromPort uint16     // 0 for any
	To       netip.AddrPort
	Protocol model.Protocol
}

// sending bounds the time until a packet is sent. On a busy machine a goroutine may wait for long.
const sending = 10 * time.Second

// Dial opens a connection by TCP or UDP. Patience begins with the first packet, so it matters only to TCP.
func (f Flow) Dial(ctx context.Context, patience time.Duration) (c net.Conn, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := net.Dialer{}
	if f.Protocol == model.UDP {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.From, cmp.Or(f.FromPort, freshPort())))
	} else {
		if f.From.IsValid() || f.FromPort != 0 {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.From, f.FromPort))
		}
		d.Control = func(string, string, syscall.RawConn) error {
			end := time.AfterFunc(patience, func() { cancel(os.ErrDeadlineExceeded) })
			context.AfterFunc(ctx, func() { end.Stop() })
			return nil
		}
	}
	err = f.NS.Do(func() (err error) {
		c, err = d.DialContext(ctx, strings.ToLower(f.Protocol.String()), f.To.String())
		return err
	})
	if err != nil && errors.Is(context.Cause(ctx), os.ErrDeadlineExceeded) {
		err = fmt.Errorf("dial: %w", os.ErrDeadlineExceeded)
	}
	return c, err
}

// Try opens the flow to an echo server and waits for the echo. An error that Silent recognises means
// that no answer came.
func (f Flow) Try(ctx context.Context, patience time.Duration) error {
	if f.Protocol == model.SCTP {
		_, err := f.Init(patience)
		return err
	}
	c, err := f.Dial(ctx, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	return Exchange(c, patience)
}

// Init sends an SCTP INIT and returns the content of the server's answer. A nil namespace is that of this process.
func (f Flow) Init(patience time.Duration) (answer []byte, err error) {
	err = within(f.NS, func() (err error) {
		answer, err = initSCTP(netip.AddrPortFrom(f.From, f.FromPort), f.To, patience)
		return err
	})
	return answer, err
}

// Read opens the flow to a server that greets, and returns the greeting.
func (f Flow) Read(patience time.Duration) (string, error) {
	c, err := f.Dial(context.Background(), patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if f.Protocol != model.UDP {
		c.SetReadDeadline(time.Now().Add(patience))
		text, err := io.ReadAll(c)
		return string(text), err
	}
	if err := send(c, []byte("hello")); err != nil {
		return "", err
	}
	c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// Seen opens the flow to a server that greets by WhoAmI, and returns the address that it sees.
func (f Flow) Seen(patience time.Duration) (netip.Addr, error) {
	text, err := f.Read(patience)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(text)
}

// Exchange sends a message on an open connection and waits for its echo.
func Exchange(c net.Conn, patience time.Duration) error {
	message := []byte("hello")
	if err := send(c, message); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(patience))
	answer := make([]byte, len(message))
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if !bytes.Equal(answer, message) {
		return fmt.Errorf("sent %q, got %q", message, answer)
	}
	return nil
}

// send leaves no deadline for later writes, which would not be sent after it.
func send(c net.Conn, message []byte) error {
	c.SetWriteDeadline(time.Now().Add(sending))
	defer c.SetWriteDeadline(time.Time{})
	_, err := c.Write(message)
	return err
}

// Silent reports whether an error means that no answer came.
func Silent(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
}
