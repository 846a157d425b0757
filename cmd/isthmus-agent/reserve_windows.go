// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// hnsPipe exists while an agent uses HNS. Windows removes it when the agent ends for any reason. Only administrators can make it, so
// that no other user can keep the agent from starting.
const hnsPipe = socket.Protected + "isthmus-hns"

// reserveHNS makes this the only agent of the host, whatever its directories, sockets and HNS network are. Routes, forwarding flags
// and the event session are the host's, and mode policy writes to the endpoints of all networks. No process connects to the pipe: its
// existence is the reservation.
func reserveHNS() (io.Closer, error) {
	pipe, err := socket.Listen(hnsPipe)
	if err != nil {
		return nil, fmt.Errorf("reserve HNS, which one agent of a host may use: %w", err)
	}
	return pipe, nil
}
