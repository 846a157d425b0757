// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
)

// The classes of errors. An *Error is exactly one of them by errors.Is.
var (
	// ErrGone: the object does not exist (any more). Right after a removal this is success.
	ErrGone = errors.New("not found in hns")
	// ErrConflict: a similar object exists. List, find it, adopt or delete it.
	ErrConflict = errors.New("exists in hns")
	// ErrRetry: HNS could not execute the call now, or did not answer in time. A retry may succeed; a call
	// without an answer may still take effect.
	ErrRetry = errors.New("hns not ready")
	// ErrRefused: the request is wrong for this HNS; a retry is useless.
	ErrRefused = errors.New("refused by hns")
)

// The result codes (HRESULT) that the product interprets. Package hnstest has further ones.
const (
	CodeNotFound            uint32 = 0x80070490 // ERROR_NOT_FOUND
	CodeObjectExists        uint32 = 0x80071392 // ERROR_OBJECT_ALREADY_EXISTS: the address is taken
	CodeAlreadyExists       uint32 = 0x800700B7 // ERROR_ALREADY_EXISTS
	CodeTimeout             uint32 = 0x800705B4 // ERROR_TIMEOUT; Guard's own when a call does not return
	CodeBusy                uint32 = 0x800700AA // ERROR_BUSY; Guarded's own while an earlier write has not returned
	CodeWaitTimeout         uint32 = 0x80070102 // WAIT_TIMEOUT
	CodeServerUnavailable   uint32 = 0x800706BA // RPC_S_SERVER_UNAVAILABLE: the service is stopped
	CodeServerTooBusy       uint32 = 0x800706BB // RPC_S_SERVER_TOO_BUSY
	CodeCallFailed          uint32 = 0x800706BE // RPC_S_CALL_FAILED: the service has ended during the call
	CodeCallNotExecuted     uint32 = 0x800706BF // RPC_S_CALL_FAILED_DNE: the service has ended before the call, of which the client did not know
	CodeNotRegistered       uint32 = 0x800706D9 // EPT_S_NOT_REGISTERED: the service has not begun to listen
	CodeServiceNotActive    uint32 = 0x80070426 // ERROR_SERVICE_NOT_ACTIVE: a service that HNS needs is stopped
	CodeAccessDenied        uint32 = 0x80070005 // E_ACCESSDENIED
	CodeUnspecified         uint32 = 0x80004005 // E_FAIL: among others, networks created at the same time
	CodeUnexpected          uint32 = 0x8000FFFF // E_UNEXPECTED
	CodeNotImplemented      uint32 = 0x80004001 // E_NOTIMPL
	CodeInvalidArgument     uint32 = 0x80070057 // E_INVALIDARG
	CodeNotSupported        uint32 = 0x80070032 // ERROR_NOT_SUPPORTED
	CodeNetworkNotFound     uint32 = 0x803B0001
	CodeEndpointNotFound    uint32 = 0x803B0002
	CodeAdapterNotFound     uint32 = 0x803B0006
	CodePolicyNotFound      uint32 = 0x803B0008
	CodeInvalidPolicy       uint32 = 0x803B000D
	CodeInvalidPolicyType   uint32 = 0x803B000E
	CodeNetworkExists       uint32 = 0x803B0010
	CodePolicyExists        uint32 = 0x803B0012
	CodePortExists          uint32 = 0x803B0013
	CodeAlreadyAttached     uint32 = 0x803B0014
	CodeRequestUnsupported  uint32 = 0x803B0015
	CodeInvalidJSON         uint32 = 0x803B001B
	CodeManagerStopped      uint32 = 0x803B0020
	CodeUnloaded            uint32 = 0x803B0031 // HCN_E_OBJECT_USED_AFTER_UNLOAD: the service is stopping
	CodeNamespaceHas        uint32 = 0x803B002B // the endpoint is in a namespace already
	CodeEndpointNotAttached uint32 = 0x803B0034
)

// Error is a failed call of HNS.
type Error struct {
	// Op is the Client method.
	Op string
	// Code is the HRESULT. NewError completes codes that were reduced to 16 bits.
	Code uint32
	// Text is the message of HNS, in the system's language; for people only.
	Text string
}

// NewError returns an error with the full form of a code.
func NewError(op string, code uint32, text string) *Error {
	if code > 0 && code <= 0xFFFF {
		code |= 0x80070000 // FACILITY_WIN32
	}
	return &Error{Op: op, Code: code, Text: text}
}

// Error returns "op: text (0x803b0002)".
func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("hns %s: %s (%#08x)", e.Op, e.class(), e.Code)
	}
	return fmt.Sprintf("hns %s: %s (%#08x)", e.Op, e.Text, e.Code)
}

// Is reports whether target is the class of the error, for errors.Is.
func (e *Error) Is(target error) bool { return target == e.class() }

func (e *Error) class() error {
	switch e.Code {
	case CodeNotFound, CodeNetworkNotFound, CodeEndpointNotFound, CodePolicyNotFound, CodeEndpointNotAttached:
		return ErrGone
	case CodeObjectExists, CodeAlreadyExists, CodeNetworkExists, CodePolicyExists, CodePortExists, CodeAlreadyAttached, CodeNamespaceHas:
		return ErrConflict
	case CodeUnspecified, CodeManagerStopped, CodeTimeout, CodeBusy, CodeWaitTimeout, CodeServerUnavailable,
		CodeServerTooBusy, CodeCallFailed, CodeCallNotExecuted, CodeNotRegistered, CodeServiceNotActive, CodeUnloaded:
		return ErrRetry
	}
	return ErrRefused
}

// Code returns the HRESULT of the *Error in a chain, or 0.
func Code(err error) uint32 {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
