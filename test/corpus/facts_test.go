// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// stated is an engine: the documented facts about HNS decide the ACLs of every endpoint, without
// code of windows/hns.
type stated struct {
	variants []aclsim.Variant
	nodes    []map[string]*acl.Ruleset
	ports    map[*hns.ACL]*facts.Port
}

func newStated() *stated { return &stated{variants: aclsim.Variants()} }

func (*stated) Name() string { return "facts" }
func (*stated) Close() error { return nil }

// Load keeps lists that are in force and still correct, as a node does.
func (s *stated) Load(c *engine.Cluster) error {
	before := s.nodes
	s.nodes, s.ports = make([]map[string]*acl.Ruleset, len(s.variants)), make(map[*hns.ACL]*facts.Port)
	for i, v := range s.variants {
		s.nodes[i] = make(map[string]*acl.Ruleset)
		for node, state := range c.States {
			was := &acl.Ruleset{}
			if before != nil && before[i][node] != nil {
				was = before[i][node]
			}
			s.nodes[i][node] = acl.Lower(state, v.Options, v.Name).Keep(was)
		}
	}
	return nil
}

func (s *stated) Decide(q engine.Question) (model.Verdict, error) {
	var local netip.Addr
	for _, ip := range q.Pod.IPs {
		if ip == q.Remote {
			return model.Allow, nil // never leaves the compartment
		}
		if ip.Is6() == q.Remote.Is6() {
			local = ip
		}
	}
	if !local.IsValid() || q.Protocol == model.ICMP && q.Remote.Is6() || q.Protocol == model.ICMPv6 && q.Remote.Is4() {
		return model.Deny, engine.ErrImpossible
	}
	k := facts.Packet{From: q.Remote, To: local, Protocol: int(q.Protocol), ToPort: int(q.Port)}
	way := facts.In
	if q.Direction == model.Egress {
		way, k.From, k.To = facts.Out, k.To, k.From
	}
	if q.Protocol.HasPorts() {
		k.FromPort = 40000
	}
	verdict, said := model.Deny, ""
	for i, v := range s.variants {
		if v.Options.NoIPv6 && q.Remote.Is6() {
			continue
		}
		port, err := s.port(s.nodes[i][q.Node], q.Endpoint)
		if err != nil {
			return model.Deny, fmt.Errorf("%s: %w", v.Name, err)
		}
		pass, err := port.Decide(way, k)
		if err != nil {
			return model.Deny, fmt.Errorf("%s: %s: %w", v.Name, k, err)
		}
		got := model.Deny
		if pass {
			got = model.Allow
		}
		if said != "" && got != verdict {
			return model.Deny, fmt.Errorf("%s says %s, %s says %s", said, verdict, v.Name, got)
		}
		verdict, said = got, v.Name
	}
	return verdict, nil
}

// port reads a list once.
func (s *stated) port(p *acl.Ruleset, id model.EndpointID) (*facts.Port, error) {
	list := p.Lists[id]
	if len(list) > 0 && s.ports[&list[0]] != nil {
		return s.ports[&list[0]], nil
	}
	var endpoint, network []json.RawMessage
	raw := func(to *[]json.RawMessage, policy hns.Policy) error {
		b, err := json.Marshal(policy)
		*to = append(*to, b)
		return err
	}
	for _, a := range list {
		if err := raw(&endpoint, a.Policy()); err != nil {
			return nil, err
		}
	}
	for set, members := range p.Sets {
		if err := raw(&network, acl.EncodeSet(set, members).Policy()); err != nil {
			return nil, err
		}
	}
	port, err := facts.Read(endpoint, network)
	if err == nil && len(list) > 0 {
		s.ports[&list[0]] = port
	}
	return port, err
}

// TestCorpusByTheFacts runs every case on its ACLs, as the documented facts about HNS decide them.
func TestCorpusByTheFacts(t *testing.T) {
	flows := 0
	for _, c := range load(t) {
		t.Run(c.Name, func(t *testing.T) {
			one := []engine.Engine{newStated()}
			var cluster *engine.Cluster
			for _, step := range c.Steps {
				cluster = engine.Compile(step.Snapshot, cluster)
				flows += judge(t, one, cluster, step.Flows)
			}
		})
	}
	t.Logf("flows=%d", flows)
}
