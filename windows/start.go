// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var _ dataplane.Starter = (*Backend)(nil)

// Starts implements dataplane.Starter.
func (b *Backend) Starts() int { return b.config.Parallel }

// StartEndpoint implements dataplane.Starter. The calls that create and attach the endpoint run
// concurrently with the other methods: they take the most time, and HNS serves those of different
// endpoints in parallel. The endpoint has default deny from its creation on. finish judges the answers,
// and repairs what AddEndpoint repairs. If another endpoint blocks it, finish is AddEndpoint.
func (b *Backend) StartEndpoint(ctx context.Context, spec dataplane.EndpointSpec,
	done func()) (finish func(context.Context) (dataplane.Attachment, error), err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("add endpoint %s: %w", spec.ID, err)
		}
	}()
	want, err := b.wantedEndpoint(spec)
	if err != nil {
		return nil, err
	}
	if err := b.checkNamespace(ctx, spec.NetNS); err != nil {
		return nil, err
	}
	n, list, err := b.ensureNetwork(ctx)
	if err != nil {
		return nil, err
	}
	want.HostComputeNetwork = n.ID
	if e := b.preparedFor(spec, want, list); e != nil {
		return b.startPrepared(ctx, n, list, e, want, spec, done)
	}
	if slices.ContainsFunc(list, func(e hns.Endpoint) bool { return e.Name == want.Name || sharesAddress(&e, &want) }) {
		go done()
		return func(ctx context.Context) (dataplane.Attachment, error) { return b.AddEndpoint(ctx, spec) }, nil
	}
	s, nat := &started{want: want, namespace: spec.NetNS}, b.nat
	b.config.Step("create endpoint")
	go func() {
		defer done()
		s.run(ctx, b.hns)
	}()
	return func(ctx context.Context) (dataplane.Attachment, error) {
		found, err := b.finish(ctx, n, s)
		if err != nil {
			return dataplane.Attachment{}, fmt.Errorf("add endpoint %s: %w", spec.ID, errors.Join(err, b.undo(ctx, n.ID, want.Name)))
		}
		b.natSince(nat)
		return b.added(n, list, found, want, spec), nil
	}, nil
}

// natSince lets syncNAT compare endpoints if the exceptions have changed since an endpoint was made
// concurrently with the other methods.
func (b *Backend) natSince(nat natState) {
	if b.nat.due.IsZero() && (nat.known != b.nat.known || !slices.Equal(nat.exceptions, b.nat.exceptions) || !slices.Equal(nat.services, b.nat.services)) {
		b.nat.due = time.Now()
	}
}

// started is an attachment that is made concurrently with the other methods.
type started struct {
	want      hns.Endpoint
	namespace string
	// made, createErr and attachErr are the answers of HNS.
	made                 hns.Endpoint
	createErr, attachErr error
}

// run makes both calls. It uses nothing of the Backend.
func (s *started) run(ctx context.Context, client *hns.Guarded) {
	if s.made, s.createErr = createClosed(ctx, client, s.want); s.createErr == nil {
		s.attachErr = client.AttachEndpoint(ctx, s.namespace, s.made.ID)
	}
}

// finish continues AddEndpoint with the answers.
func (b *Backend) finish(ctx context.Context, n *hns.Network, s *started) (*hns.Endpoint, error) {
	if s.createErr == nil {
		return &s.made, b.attached(ctx, &s.made, s.namespace, s.attachErr)
	}
	found, err := b.createAgain(ctx, n, s.want, s.made, s.createErr)
	if err == nil {
		err = b.attach(ctx, found, s.namespace)
	}
	return found, err
}
