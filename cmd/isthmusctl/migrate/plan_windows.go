// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"fmt"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// plan prints the plan of this node.
func (e env) plan(ctx context.Context, o *options) error {
	client, err := hns.Open()
	if hns.Code(err) == hns.CodeAccessDenied {
		err = fmt.Errorf("%w: run this as an administrator", err)
	}
	if err != nil {
		return err
	}
	return e.planHNS(ctx, client, o)
}

func (e env) forward(context.Context, *options) error { return errNothingToRun() }

func (e env) backward(context.Context, *options) error { return errNothingToReverse() }
