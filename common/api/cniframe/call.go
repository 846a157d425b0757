// SPDX-License-Identifier: Apache-2.0

package cniframe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrProtocol reports a malformed reply of the agent.
var ErrProtocol = errors.New("malformed reply from isthmus-agent")

// Call sends a request on a new connection and decodes the reply into answer, unless answer is nil. The
// context must have a deadline. The error is an *Error if the agent refused the request. It wraps
// ErrProtocol for a malformed reply, and is otherwise the error of the connection.
func Call(ctx context.Context, conn net.Conn, kind Kind, request, answer any) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("call without a deadline")
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	// One goroutine sends the whole request and then reads the answer. Nothing else uses the connection.
	if err := (Frame{Kind: kind, Timeout: time.Until(deadline), Body: body}).Write(conn); err != nil {
		return err
	}
	f, err := Read(conn)
	if errors.Is(err, ErrVersion) {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if err != nil {
		return err
	}
	switch f.Kind {
	case Done:
		if answer == nil {
			return nil
		}
		err = json.Unmarshal(f.Body, answer)
	case Refused:
		refused := &Error{}
		if err = json.Unmarshal(f.Body, refused); err == nil {
			return refused
		}
	default:
		return fmt.Errorf("%w: its frame is of kind %d", ErrProtocol, f.Kind)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}
