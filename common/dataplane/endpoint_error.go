// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
)

// EndpointError is an error that concerns one endpoint only. If an error of Apply joins only
// EndpointErrors, the decisions of all other endpoints are in force.
type EndpointError struct {
	ID  model.EndpointID
	Err error
}

// Error names the endpoint and the cause.
func (e *EndpointError) Error() string { return fmt.Sprintf("endpoint %s: %v", e.ID, e.Err) }

// Unwrap returns the cause.
func (e *EndpointError) Unwrap() error { return e.Err }

// Concerns reports whether, after an error of Apply, an endpoint may not be under its new decisions. That
// is so if the error is about that endpoint, or not only about single endpoints.
func Concerns(err error, id model.EndpointID) bool {
	if err == nil {
		return false
	}
	if e, ok := err.(*EndpointError); ok {
		return e.ID == id
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			if Concerns(part, id) {
				return true
			}
		}
		return false
	}
	if wrapped := errors.Unwrap(err); wrapped != nil {
		return Concerns(wrapped, id)
	}
	return true
}
