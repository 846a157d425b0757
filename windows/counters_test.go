// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestRuleCounters: the backend counts by the lists that it has written. A write, also one of a set, keeps its
// packets from all rules. Closing ends the passes.
func TestRuleCounters(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	if _, err := n.backend.CauseCounts(ctx); !errors.Is(err, dataplane.ErrNotCounted) || !strings.Contains(err.Error(), "--rule-counters") {
		t.Errorf("without a program: %v", err)
	}
	var packets atomic.Uint64 // of every ACL
	var endpoint atomic.Pointer[hns.Endpoint]
	n.config.RuleCounters = func(_ context.Context, args ...string) ([]byte, error) {
		e := endpoint.Load()
		if e == nil {
			return []byte(`{"Ports":[]}`), nil
		}
		if args[0] == "/list-vmswitch-port" {
			return json.Marshal(map[string]any{"Ports": []any{map[string]string{"Id": e.ID, "Name": e.ID}}})
		}
		acls, err := e.ACLs()
		var rules []any
		for _, a := range acls {
			rules = append(rules, map[string]any{"Id": a.ID, "Priority": a.Priority, "InformationArray": []any{map[string]any{"RuleCounters": map[string]uint64{"MatchedPackets": packets.Load()}}}})
		}
		text, encodeErr := json.Marshal(map[string]any{"Layers": []any{map[string]any{"Name": "ACL_ENDPOINT_LAYER", "Groups": []any{map[string]any{"Rules": rules}}}}})
		return text, errors.Join(err, encodeErr)
	}
	n.config.RuleCounterInterval = time.Second
	if err := n.config.Defaults().Validate(); err == nil || !strings.Contains(err.Error(), "interval of rule counters 1s: give at least 10s") {
		t.Error(err)
	}
	n.config.RuleCounterInterval = time.Hour
	n.start()
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	count := func(total, rule, others uint64) {
		t.Helper()
		e := n.stored(spec.ID)
		endpoint.Store(&e)
		packets.Store(total)
		n.backend.CountRules(ctx)
		c, err := n.backend.CauseCounts(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var got uint64
		for _, one := range c.Causes {
			if one.Cause.Origin.Name == "p" {
				got += one.Flows
			}
		}
		// Others have those of the rule for the node too.
		if len(c.Causes) != 2 || got != rule || c.Others[model.Ingress][model.Allow] != 2*others || !c.Packets {
			t.Errorf("at %d packets: %+v, want %d of the rule and %d others", total, c, rule, others)
		}
	}
	n.apply(peerState(spec, "10.0.3.3"))
	count(5, 0, 0)
	count(15, 10, 0)
	n.apply(peerState(spec, "10.0.3.3", "10.0.3.4"))
	count(22, 10, 7)
	n.apply(peerState(spec, "10.0.3.3", "10.0.3.4")) // changes nothing
	count(25, 13, 7)
	if err := n.backend.Close(); err != nil {
		t.Error(err)
	}
}
