// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	// maxMessage bounds a request and an answer, in bytes.
	maxMessage = 512
	// maxConnections bounds the open connections of a server per port.
	maxConnections = 256
	// patience bounds the life of a connection.
	patience = 10 * time.Second
)

// Serve answers at TCP and UDP ports on all addresses until the context is done.
func Serve(ctx context.Context, name string, ports ...uint16) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2*len(ports))
	for _, p := range ports {
		at := net.JoinHostPort("", strconv.Itoa(int(p)))
		var listen net.ListenConfig
		l, err := listen.Listen(ctx, "tcp", at)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		defer l.Close()
		packets, err := listen.ListenPacket(ctx, "udp", at)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		defer packets.Close()
		go func() { ended <- serveTCP(l, name) }()
		go func() { ended <- serveUDP(packets, name) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// reply answers a request: its token, the name of the server, and the address of the client.
func reply(request, name string, client net.Addr) string {
	seen, _ := netip.ParseAddrPort(client.String()) // it is one
	return fmt.Sprintf("%s %s %s\n", strings.TrimSpace(request), name, seen.Addr().Unmap().WithZone(""))
}

func serveTCP(l net.Listener, name string) error {
	tokens := make(chan struct{}, maxConnections)
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // such as too many open files
			continue
		}
		select {
		case tokens <- struct{}{}:
		default:
			c.Close()
			continue
		}
		go func() {
			defer func() { <-tokens }()
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
				return
			}
			request, err := bufio.NewReader(io.LimitReader(c, maxMessage)).ReadString('\n')
			if err == nil {
				_, _ = io.WriteString(c, reply(request, name, c.RemoteAddr())) // the client notices
			}
		}()
	}
}

func serveUDP(packets net.PacketConn, name string) error {
	for buf := make([]byte, maxMessage); ; {
		n, from, err := packets.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil || n == 0 || buf[n-1] != '\n' {
			continue // an ICMP error about an earlier answer, or no request
		}
		_, _ = packets.WriteTo([]byte(reply(string(buf[:n]), name, from)), from) // the client notices
	}
}
