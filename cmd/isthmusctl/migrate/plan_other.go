// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package migrate

import (
	"context"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// makePlan always fails: only Linux nodes can be migrated.
func makePlan(*options) (*takeover.Plan, []string, error) {
	return nil, nil, cli.Usagef("this system is not Linux: drain the node, remove its network and install Isthmus")
}

func (e env) forward(context.Context, *options) error { _, _, err := makePlan(nil); return err }

func (e env) backward(context.Context, *options) error { _, _, err := makePlan(nil); return err }
