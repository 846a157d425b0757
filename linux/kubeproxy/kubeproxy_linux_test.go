// SPDX-License-Identifier: Apache-2.0

package kubeproxy_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux/kubeproxy"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// hooks stands for netfilter hooks of a kernel that supports programs there, beside those of an older
// layout: then the component leaves nftables alone, and needs no privilege.
type hooks struct {
	attached bool
	calls    int
}

func (h *hooks) HookEgress() (bool, error) {
	h.attached = true
	h.calls++
	return true, nil
}
func (h *hooks) UnhookEgress() error { panic("the hooks are in use") }
func (h *hooks) AuditHooks() ([]loader.Finding, error) {
	if h.attached {
		return nil, nil
	}
	return []loader.Finding{{Object: "netfilter", Detail: "no program on forward4"}}, nil
}
func (h *hooks) PinFilters() (loader.Filters, error) { panic("no rule calls the programs") }
func (h *hooks) OlderFilters() loader.Filters        { return loader.Filters{Forward: "/older"} }

// TestHooks: hooks that another process cleared are found and attached again, and only then.
func TestHooks(t *testing.T) {
	h, ctx := &hooks{}, context.Background()
	e := kubeproxy.New(h, false, dataplane.Host{Log: slog.New(slog.DiscardHandler)})
	if err := e.Attach(); err != nil {
		t.Fatal(err)
	}
	if modes := e.PathModes(); !slices.Equal(modes, []dataplane.PathMode{{Part: "services", Mode: "netfilter", Count: 1}}) {
		t.Errorf("modes %v", modes)
	}
	if err := e.Repair(ctx); err != nil || h.calls != 1 {
		t.Errorf("a repair without damage attaches: %d calls, %v", h.calls, err)
	}
	h.attached = false
	found, err := e.Audit(ctx, nil)
	if err != nil || !slices.Equal(found, []dataplane.Drift{{Object: "netfilter", Detail: "no program on forward4"}}) {
		t.Errorf("the audit finds %v, %v", found, err)
	}
	if err := e.Repair(ctx); err != nil || !h.attached {
		t.Errorf("not repaired: %v", err)
	}
	if lost, err := e.Lost(); lost || err != nil {
		t.Errorf("a rule that is not in use is lost: %t, %v", lost, err)
	}
}
