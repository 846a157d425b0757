// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	"github.com/isthmus-net/isthmus/common/model"
)

// Source follows the objects of a cluster.
type Source interface {
	// Run publishes the cluster, first when the first complete state is known
	// and then after every change, until ctx is done; then it returns nil. It
	// returns an error only if it could not begin. publish is called from one
	// goroutine, with snapshots that share whatever did not change. While the
	// objects cannot be read, or some of them are bad, the last snapshot stays
	// in force: nothing is published. Run may be called once.
	Run(ctx context.Context, publish func(*model.Snapshot)) error

	// Problems lists what is wrong now, one line each, sorted. It may be called
	// at any time, from any goroutine.
	Problems() []string

	// Behind says why the last snapshot may be out of date; empty if it is not.
	// It may be called at any time, from any goroutine.
	Behind() string
}

var (
	_ Source = (*Directory)(nil)
	_ Source = (*APIServer)(nil)
)
