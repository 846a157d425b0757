// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// Protected begins the names of pipes that Windows lets only administrators and the system make. Every process may make one of another
// name before the agent does, and so keep it from starting.
const Protected = `\\.\pipe\ProtectedPrefix\Administrators\`

// Default is the address of the agent's socket.
const Default = Protected + "isthmus"

// descriptor is an SDDL string. The administrators own the pipe, which Dial checks. It gives full access to
// the system and to administrators only, and denies clients from the network.
const descriptor = "O:BAD:P(D;;GA;;;NU)(A;;GA;;;SY)(A;;GA;;;BA)"

// Listen opens the pipe. It fails if another process has opened it.
func Listen(address string) (net.Listener, error) {
	l, err := winio.ListenPipe(address, &winio.PipeConfig{SecurityDescriptor: descriptor})
	if errors.Is(err, os.ErrExist) || errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil, fmt.Errorf("listen on %s: another process has opened the pipe, or this one may not: stop the other agent, and run this one as an administrator: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// Dial connects to the agent. It refuses a pipe of another user: while no agent runs, every process may create
// a pipe of that name, and would answer an ADD without any policy.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := winio.DialPipeContext(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := checkOwner(c); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", address, err), c.Close())
	}
	return c, nil
}

// checkOwner returns an error for a pipe that neither the system nor the administrators own. Only they can make
// a pipe with such an owner.
func checkOwner(c net.Conn) error {
	pipe, ok := c.(interface{ Fd() uintptr })
	if !ok {
		return fmt.Errorf("%T has no handle", c)
	}
	sd, err := windows.GetSecurityInfo(windows.Handle(pipe.Fd()), windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the owner of the pipe: %w", err)
	}
	owner, _, err := sd.Owner()
	if err != nil {
		return fmt.Errorf("read the owner of the pipe: %w", err)
	}
	if owner == nil || !owner.IsWellKnown(windows.WinLocalSystemSid) && !owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) {
		return fmt.Errorf("user %s opened the pipe, not the system or an administrator: stop that process, and start the agent", owner)
	}
	return nil
}

// Absent reports whether an error of Dial says that no process listens on the pipe.
func Absent(err error) bool { return errors.Is(err, os.ErrNotExist) }
