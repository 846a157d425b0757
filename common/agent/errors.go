// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
)

// Codes of CNI errors. The CNI specification (version 1.1, section 5) defines those below 100; Isthmus
// defines the others.
const (
	// CodeEnv: CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS or CNI_ARGS is invalid.
	CodeEnv = 4
	// CodeIO: an endpoint record could not be written.
	CodeIO = 5
	// CodeConfig: the network configuration does not fit the agent or the interface.
	CodeConfig = 7
	// CodeTryAgain: a retry may succeed.
	CodeTryAgain = 11
	// CodeNotAvailable: Add cannot work now.
	CodeNotAvailable = 50
	// CodeLimited: Add cannot work now, and the policy of existing pods may be out of date.
	CodeLimited = 51
	// CodeConflict: the attachment exists for another pod or namespace.
	CodeConflict = 100
	// CodeRefused: the pod cannot be attached, now or later.
	CodeRefused = 101
	// CodeAddresses: no address is available.
	CodeAddresses = 102
	// CodeDataPath: the data path returned an error.
	CodeDataPath = 103
	// CodeBroken: Check found an attachment that differs from what Add created.
	CodeBroken = 104
	// CodeInternal: none of the above.
	CodeInternal = 999
)

// codes are all codes of requests, 0 for success.
var codes = []uint32{0, CodeEnv, CodeIO, CodeConfig, CodeTryAgain, CodeNotAvailable, CodeLimited, CodeConflict, CodeRefused,
	CodeAddresses, CodeDataPath, CodeBroken, CodeInternal}

// commands are the commands of the CNI specification.
var commands = []string{"ADD", "DEL", "CHECK", "GC", "STATUS"}

// Error is an error with the code that the CNI plugin prints.
type Error struct {
	Code uint32
	// Msg is one line: the object and the problem.
	Msg string
	// Details is the cause or the remedy.
	Details string
	cause   error
}

// Error returns "msg: details".
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// refuse returns an Error with a remedy.
func refuse(code uint32, remedy, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...), Details: remedy}
}

// blame returns an Error with a cause.
func blame(code uint32, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...), Details: cause.Error(), cause: cause}
}

// AsError converts any error to an *Error with a code.
func AsError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return blame(CodeTryAgain, err, "request was not answered in time")
	}
	return blame(CodeInternal, err, "internal error of isthmus-agent")
}
