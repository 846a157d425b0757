// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/common/connectivity/probe"
)

// Tenancy is a namespace that a test made.
type Tenancy struct {
	Namespace string
	// Beat changes every few seconds while the test runs.
	Beat string
	// Kept is true if the user wants the namespace to stay.
	Kept bool
}

// PodState is how far a pod is.
type PodState struct {
	Running   bool
	Addresses []netip.Addr
	// Waits says what the pod waits for, or why it ended.
	Waits string
}

// ErrRefused is in the chain of errors of a Cluster if the user lacks a right, so that repeating the call does not help.
var ErrRefused = errors.New("the user lacks a right")

// Cluster is where tests run. All methods may be called again after an error.
type Cluster interface {
	// Tenancies returns the namespaces of tests that are not being removed.
	Tenancies(ctx context.Context) ([]Tenancy, error)
	// Create makes the namespace. Touch changes the beat of one that exists.
	Create(ctx context.Context, t Tenancy) error
	Touch(ctx context.Context, t Tenancy) error
	// Remove starts the removal of a namespace with its content. One that does not exist is no error.
	Remove(ctx context.Context, namespace string) error
	// Start makes pods and the Services of servers, and returns the addresses of these Services by name.
	Start(ctx context.Context, namespace string, pods []Pod) (map[string][]netip.Addr, error)
	// States returns the states of the pods by name.
	States(ctx context.Context, namespace string) (map[string]PodState, error)
	// Enforce makes these policies the only ones of the namespace.
	Enforce(ctx context.Context, namespace string, policies []Policy) error
	// Probe tries targets in a pod, at most probe.MaxTargets, and returns the answers in the same order.
	Probe(ctx context.Context, namespace string, from Pod, timeout time.Duration, targets []probe.Target) ([]probe.Answer, error)
}
