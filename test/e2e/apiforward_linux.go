// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// forwardAPI forwards connections from a port of 127.0.0.1 on this machine to the API server, which
// is in another network namespace. TLS stays end to end.
func (l *lab) forwardAPI(ctx context.Context, port int) (io.Closer, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen for clients of the API server: %w: give another -port", err)
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			go l.forwardConnection(client)
		}
	}()
	return listener, nil
}

// forwardConnection copies data between a client and the API server until both have ended.
func (l *lab) forwardConnection(client net.Conn) {
	defer client.Close()
	var server net.Conn
	err := l.fabric.Do(func() (err error) {
		server, err = net.DialTimeout("tcp", l.apiAddress().String(), 5*time.Second)
		return err
	})
	if err != nil {
		return // the client sees the end of its connection
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(server, client)
		server.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(client, server)
	client.(*net.TCPConn).CloseWrite()
	<-done
}
