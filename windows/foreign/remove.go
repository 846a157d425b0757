// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/statefile"
)

// Remove removes our ACLs from all endpoints, and the file of the Config. It leaves everything else as it is. It is
// for uninstalling. An endpoint that still has ACLs of ours is an error, as no agent would change them any more.
func Remove(ctx context.Context, client hns.Client, file string, deadline time.Duration) error {
	b := &Backend{hns: hns.Guard(client, hns.GuardConfig{Deadline: deadline})}
	all, err := b.scan(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range all {
		if err := b.strip(ctx, &all[i]); err != nil {
			errs = append(errs, fmt.Errorf("remove acls from hns endpoint %s: %w", all[i].Name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return statefile.Remove(file)
}

// strip removes our ACLs from an endpoint. Azure NPM does not ask HNS to remove ACLs, because some versions do not. If HNS does not do it,
// an Update replaces them by those of others. An Update without any ACL may leave all ACLs: where others have none, ours that allow
// everything stay.
func (b *Backend) strip(ctx context.Context, f *found) error {
	own, kept := divide(f.Policies)
	if len(own) == 0 {
		return nil
	}
	answer, err := b.hns.ModifyEndpoint(ctx, f.ID, hns.Remove, own...)
	left, _ := divide(answer.Policies)
	if err == nil && len(left) == 0 {
		return nil
	}
	if err != nil && !errors.Is(err, hns.ErrGone) && !errors.Is(err, hns.ErrRefused) { // gone: a policy, or the endpoint
		return err
	}
	var open []hns.Policy
	if !slices.ContainsFunc(kept, func(p hns.Policy) bool { return p.Is(hns.TypeACL) }) {
		for _, a := range acl.DenyAll() {
			a.ID, a.Action = marked("allow "+a.ID), hns.Allow
			open = append(open, a.Policy())
		}
	}
	answer, err = b.hns.ModifyEndpoint(ctx, f.ID, hns.Update, slices.Concat(kept, open)...)
	if errors.Is(err, hns.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	left, now := divide(answer.Policies)
	if len(left) != len(open) || slices.ContainsFunc(left, blocks) {
		return errors.New("hns accepted the request and kept acls of isthmus: restart the pod")
	}
	if lost := missing(kept, now); lost != "" {
		return fmt.Errorf("hns lost the policy %s of another program: restart the pod", lost)
	}
	return nil
}

// divide separates our ACLs from all other policies. Unlike split it needs to understand none of those.
func divide(policies []hns.Policy) (own, kept []hns.Policy) {
	for _, p := range policies {
		if ours(p) {
			own = append(own, p)
		} else {
			kept = append(kept, p)
		}
	}
	return own, kept
}

// ours reports whether a policy is an ACL of this package.
func ours(p hns.Policy) bool {
	var a struct {
		ID string `json:"Id"`
	}
	return p.Is(hns.TypeACL) && p.Decode(&a) == nil && strings.HasPrefix(a.ID, mark)
}

func blocks(p hns.Policy) bool {
	a, err := p.ACL()
	return err != nil || a.Normal().Action != hns.Allow
}
