// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// TestSocketIsRemoved removes a socket of an agent, which no runtime or command reaches any more. It ends, and the next one serves.
func TestSocketIsRemoved(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 2)
	for n, path := range []string{m.socket(), socket.Inspection(m.socket())} {
		m.start(0)
		if _, err := m.add(n); err != nil {
			t.Fatalf("%v\n%s", err, m.log.String())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := m.gaveUp(); err == nil || !strings.Contains(m.log.String(), path+" was removed") {
			t.Errorf("%v\n%s", err, m.log.String())
		}
	}
	m.start(0)
	for n := range 2 {
		if _, err := m.add(n); err != nil {
			t.Error(err)
		}
	}
	if err := m.stop(); err != nil {
		t.Errorf("%v\n%s", err, m.log.String())
	}
}
