// SPDX-License-Identifier: Apache-2.0

package cnicall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrProtocol is the error about an answer that is none.
var ErrProtocol = errors.New("the agent does not answer as this plugin asks")

// Call sends a request on a new connection and reads the answer, into answer if
// that is not nil. The context must have a deadline. The error is an *Error if
// the agent refused, wraps ErrProtocol if it said something else, and is the
// connection's otherwise.
func Call(ctx context.Context, conn net.Conn, kind Kind, request, answer any) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("a call needs a deadline")
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	// First the whole request, then the answer, from one goroutine: nothing else
	// is asked of the connection.
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
