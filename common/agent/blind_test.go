// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// blind is a data path that cannot look for pods without policy while a flag is set.
type blind struct {
	*dataplanetest.Fake
	follow, check, find atomic.Bool
}

var errBlind = errors.New("no memory")

func (b *blind) Follow(context.Context) error {
	if b.follow.Load() {
		return errBlind
	}
	return nil
}

func (b *blind) Check(ctx context.Context) ([]dataplane.Installed, error) {
	if b.check.Load() {
		return nil, errBlind
	}
	return b.Fake.Check(ctx)
}

func (b *blind) Interfaces(ctx context.Context) ([]dataplane.Interface, error) {
	if b.find.Load() {
		return nil, errBlind
	}
	return b.Fake.Interfaces(ctx)
}

// While the agent cannot look for pods without policy, status says so, and its kind of problem has an alert.
func TestBlindness(t *testing.T) {
	for what, flag := range map[string]func(b *blind) *atomic.Bool{
		"interfaces that the other CNI plugin makes again may have no policy: no memory": func(b *blind) *atomic.Bool { return &b.follow },
		"pods whose policy is not enforced may go unnoticed: no memory":                  func(b *blind) *atomic.Bool { return &b.check },
		"pods that no ADD named are not found: list interfaces: no memory":               func(b *blind) *atomic.Bool { return &b.find },
	} {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				b := &blind{Fake: r.fake}
				r.noPool, r.change = true, func(c *agent.Config) {
					c.PolicyOnly = true
					c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return b, nil }
				}
				r.fake.SetInterfaces(made("5:2", 0))
				r.start()
				r.agent.Publish(running(1))
				for _, fails := range []bool{false, true, false} {
					flag(b).Store(fails)
					time.Sleep(10 * time.Second)
					problems := strings.Join(r.agent.Node(context.Background()).Problems, "; ")
					if strings.Contains(problems, what) != fails || !fails && problems != "" {
						t.Errorf("fails %t, problems %q", fails, problems)
					}
					if got := r.metric(`isthmus_problems{kind="data_path"}`); (got == "1") != fails {
						t.Errorf("fails %t, isthmus_problems %s", fails, got)
					}
				}
				r.end()
			})
		})
	}
}
