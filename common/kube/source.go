// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	"github.com/isthmus-net/isthmus/common/model"
)

// Source reads the objects of a cluster and follows their changes.
type Source interface {
	// Run publishes the cluster until ctx is done; then it returns nil. It publishes first when the
	// complete state is known, and then after every change. It returns an error only if it could not begin.
	// It calls publish from one goroutine, with snapshots that share all unchanged parts. While objects
	// cannot be read, or some of them are bad, it publishes nothing and the last snapshot stays in force.
	// Call it once.
	Run(ctx context.Context, publish func(*model.Snapshot)) error

	// Problems lists the current problems, one line each, sorted. It is safe for concurrent use.
	Problems() []string

	// Behind returns why the last snapshot may be out of date, or "". It is safe for concurrent use.
	Behind() string
}
