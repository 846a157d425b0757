// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// traffic returns the flow as the client opens it.
func (f *Flow) traffic() traffic.Flow {
	return traffic.Flow{NS: f.From.ns, From: f.Src, To: netip.AddrPortFrom(f.Dst, f.Port), Protocol: f.Protocol}
}

// connect reports whether a new flow is answered. Only silence counts as denied; any other failure is an error.
func connect(ctx context.Context, f traffic.Flow, patience time.Duration) (model.Verdict, error) {
	switch err := f.Try(ctx, patience); {
	case err == nil:
		return model.Allow, nil
	case traffic.Silent(err):
		return model.Deny, nil
	default:
		return 0, err
	}
}
