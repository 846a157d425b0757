// SPDX-License-Identifier: Apache-2.0

package socket_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/Microsoft/go-winio"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// TestPipeOfAnotherUser opens pipes that everyone may use, with several owners. Dial accepts those of the
// system and of administrators only, as another process may have opened the pipe before the agent.
func TestPipeOfAnotherUser(t *testing.T) {
	for owner, want := range map[string]string{"BA": "", "SY": "", "BU": "user S-1-5-32-545 opened the pipe", "LS": "user S-1-5-19 opened the pipe"} {
		address := fmt.Sprintf(`\\.\pipe\isthmus-test-%d-%s`, os.Getpid(), owner)
		var l net.Listener
		// The privilege is needed to make a pipe with an owner that is not in the token.
		err := winio.RunWithPrivilege(winio.SeRestorePrivilege, func() (err error) {
			l, err = winio.ListenPipe(address, &winio.PipeConfig{SecurityDescriptor: "O:" + owner + "D:(A;;GA;;;WD)"})
			return err
		})
		if err != nil {
			t.Fatalf("owner %s: %v", owner, err)
		}
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			if c, err := l.Accept(); err == nil {
				c.Close()
			}
		}()
		c, err := socket.Dial(t.Context(), address)
		if got := fmt.Sprint(err); (err == nil) != (want == "") || !strings.Contains(got, want) {
			t.Errorf("owner %s: %v, want %q", owner, err, want)
		}
		if err == nil {
			c.Close()
		}
		<-accepted
		l.Close()
	}
}

// TestOwnPipe connects to a pipe of Listen that only administrators can make. A second one of that name is refused.
func TestOwnPipe(t *testing.T) {
	address := fmt.Sprintf("%sisthmus-test-%d", socket.Protected, os.Getpid())
	l, err := socket.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	c, err := socket.Dial(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	if second, err := socket.Listen(address); err == nil || !strings.Contains(err.Error(), "another process has opened the pipe") {
		t.Errorf("a second pipe: %v, %v", second, err)
	}
}
