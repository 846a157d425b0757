// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestConfigValidate(t *testing.T) {
	if err := agent.Defaults().Validate(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want the node name, the directory and the data path to be missed, got %v", err)
	}
	good := func() agent.Config {
		c := agent.Defaults()
		c.NodeName, c.RecordDir = "n", "/r"
		c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return nil, nil }
		return c
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for text, change := range map[string]func(*agent.Config){
		"add wait is 0s":                         func(c *agent.Config) { c.AddWait = 0 },
		"stall 5s must be longer":                func(c *agent.Config) { c.Stall = 5 * time.Second },
		"retry max 1ms is below retry min":       func(c *agent.Config) { c.RetryMax = time.Millisecond },
		"max debounce 1ms is below debounce 5ms": func(c *agent.Config) { c.MaxDebounce = time.Millisecond },
		"quarantine -1s is negative":             func(c *agent.Config) { c.Quarantine = -time.Second },
		"pod range 10.0.0.1/24 has host bits":    func(c *agent.Config) { c.PodCIDRs = prefixes("10.0.0.1/24") },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
}
