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

// Default is the address of the agent's socket.
const Default = `\\.\pipe\isthmus`

// descriptor is an SDDL string. It gives full access to the system and to administrators only, and denies
// clients from the network.
const descriptor = "D:P(D;;GA;;;NU)(A;;GA;;;SY)(A;;GA;;;BA)"

// Listen opens the pipe. It fails if another process has opened it.
func Listen(address string) (net.Listener, error) {
	l, err := winio.ListenPipe(address, &winio.PipeConfig{SecurityDescriptor: descriptor})
	if errors.Is(err, os.ErrExist) || errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil, fmt.Errorf("listen on %s: another process has opened the pipe: stop the other agent: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// Dial connects to the agent.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	return winio.DialPipeContext(ctx, address)
}
