// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

// ask connects to the agent and calls f. Its errors include a remedy.
func (e env) ask(ctx context.Context, s *shared, f func(context.Context, isthmusv1.InspectClient) error) error {
	return e.connect(ctx, s, func(ctx context.Context, c *grpc.ClientConn) error { return f(ctx, isthmusv1.NewInspectClient(c)) })
}

// connect is ask for any service.
func (e env) connect(ctx context.Context, s *shared, f func(context.Context, *grpc.ClientConn) error) error {
	bound, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := e.Dial(bound, socket.Inspection(s.socket))
	if err != nil {
		return fmt.Errorf("connect to the agent: %w: %s", err, remedy(err))
	}
	dialed := make(chan net.Conn, 1)
	dialed <- conn
	client, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-dialed:
				return c, nil
			default:
				return nil, errors.New("connection was lost")
			}
		}))
	if err != nil {
		return fmt.Errorf("connect to the agent: %w", errors.Join(err, conn.Close()))
	}
	defer client.Close()
	if s.forever {
		bound = ctx
	}
	switch err := f(bound, client); status.Code(err) {
	case codes.OK:
		return err
	case codes.DeadlineExceeded:
		return fmt.Errorf("ask the agent: no answer within %s: it is busy; raise --timeout, or read its log", s.timeout)
	case codes.Unavailable:
		return fmt.Errorf("ask the agent: connection was lost: run isthmusctl as root, or check whether the agent restarts: %s", status.Convert(err).Message())
	case codes.Unimplemented:
		if message := status.Convert(err).Message(); !strings.HasPrefix(message, "unknown ") { // gRPC's own
			return fmt.Errorf("ask the agent: %s", message)
		}
		return errors.New("ask the agent: it does not know this request: use the isthmusctl of the agent's version")
	default:
		return fmt.Errorf("ask the agent: %s", status.Convert(err).Message())
	}
}

func remedy(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run isthmusctl as root, on Windows as an administrator"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return "start isthmus-agent, or give the path of its socket with --socket; from another machine, run isthmusctl in the agent pod of the node, by kubectl exec"
	}
	return "check whether isthmus-agent runs"
}
