// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package migrate

import (
	"context"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// plan always fails: this system cannot be a node.
func (e env) plan(context.Context, *options) error {
	return cli.Usagef("nodes run Linux or Windows: run this on a node")
}

func (e env) forward(ctx context.Context, o *options) error { return e.plan(ctx, o) }

func (e env) backward(ctx context.Context, o *options) error { return e.plan(ctx, o) }
