// SPDX-License-Identifier: Apache-2.0

// Package denylist reports that deny lists are not enforced on Windows nodes: HNS ACLs apply to pods' ports
// only, and listed sources may also send to the host. It does nothing else.
package denylist

import (
	"context"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// DenyList refuses every deny list.
type DenyList struct{}

var _ dataplane.Component = DenyList{}

// Apply returns every list of the State as refused.
func (DenyList) Apply(_ context.Context, s *model.State) (all []model.Unsupported, _ error) {
	if s.Deny == nil {
		return nil, nil
	}
	for _, l := range s.Deny.Lists {
		all = append(all, model.Unsupported{Policy: l.Origin(), Rule: -1, Construct: "spec.entries",
			Effect: model.Refused, Reason: "deny lists are not enforced on Windows nodes: use a ClusterNetworkPolicy for pods there"})
	}
	return all, nil
}

// Sync does nothing.
func (DenyList) Sync(context.Context, time.Time) error { return nil }

// Problems returns nil: the lists are reported as not enforced.
func (DenyList) Problems() []string { return nil }

// PathModes returns nil.
func (DenyList) PathModes() []dataplane.PathMode { return nil }

// Close does nothing.
func (DenyList) Close() error { return nil }
