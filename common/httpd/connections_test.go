// SPDX-License-Identifier: Apache-2.0

package httpd

import (
	"container/list"
	"net"
	"net/http"
	"testing"
)

// TestLateReport reports that a connection is active after the limit has closed it, as its goroutine may.
func TestLateReport(t *testing.T) {
	var ours, theirs [3]net.Conn
	for i := range ours {
		ours[i], theirs[i] = net.Pipe()
		defer theirs[i].Close()
		defer ours[i].Close()
	}
	open := &connections{most: 2, entries: make(map[net.Conn]*list.Element), held: make(map[net.Conn]bool)}
	for _, c := range ours {
		open.note(c, http.StateNew)
	}
	open.note(ours[0], http.StateActive)
	open.note(ours[0], http.StateClosed)
	for i, c := range ours {
		go theirs[i].Read(make([]byte, 1))
		_, err := c.Write([]byte{0})
		if closed := err != nil; closed != (i == 0) {
			t.Errorf("connection %d: closed %v, want %v: only the oldest exceeds the limit", i, closed, i == 0)
		}
	}
	if n := open.order.Len(); n != 2 {
		t.Errorf("%d connections are listed, want 2", n)
	}
}
