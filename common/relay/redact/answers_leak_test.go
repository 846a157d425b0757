// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
)

// pair draws an answer. Two pairs with the same visible and other hidden numbers draw answers that differ only in what the client
// must not see.
type pair struct {
	visible, hidden *rand.Rand
	scope           access.Scope
}

// some fills all fields of a value, also those that this test does not know, with texts and numbers that a client may see.
func (p pair) some(x any) { fillValue(p.visible, reflect.ValueOf(x).Elem(), "own-", 0) }

// secrets fills all fields of a value with texts and numbers that a client must not see.
func (p pair) secrets(x any) { fillValue(p.hidden, reflect.ValueOf(x).Elem(), secret, secretNumber) }

// is fills a value with what is visible to a client with a right, and secret to others.
func (p pair) is(visible bool, x any) {
	if visible {
		p.some(x)
	} else {
		p.secrets(x)
	}
}

// text returns a text that is visible to a client with a right, and secret to others.
func (p pair) text(visible bool) (text string) {
	p.is(visible, &text)
	return text
}

func fillValue(r *rand.Rand, v reflect.Value, mark string, base int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(mark + fmt.Sprint(r.IntN(1_000_000)))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(base + r.IntN(1_000_000)))
	case reflect.Uint64, reflect.Uint32:
		v.SetUint(uint64(base + r.IntN(1_000_000)))
	case reflect.Uint16: // has no room for a mark: only the ports that a client gives
		v.SetUint(uint64(r.IntN(1 << 16)))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(r, v.Elem(), mark, base)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+r.IntN(2), 2))
		for i := range v.Len() {
			fillValue(r, v.Index(i), mark, base)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(r, key, mark, base)
		fillValue(r, value, mark, base)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillValue(r, v.Field(i), mark, base)
			}
		}
	default:
		panic(fmt.Sprintf("the test has no value for %s: add its kind", v.Type()))
	}
}

// list draws visible items among hidden ones, whose number and places are hidden, too. That there are hidden ones is not.
func list[T any](p pair, hides bool, item func(visible bool) T) (all []T) {
	var kinds []bool
	for range p.visible.IntN(3) {
		kinds = append(kinds, true)
	}
	if hides {
		for range 1 + p.hidden.IntN(3) {
			kinds = append(kinds, false)
		}
	}
	p.hidden.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for _, visible := range kinds {
		all = append(all, item(visible))
	}
	return all
}

// policy names a policy of the namespace shop, or one that a team must not see.
func (p pair) policy(own bool) string {
	if own {
		return "NetworkPolicy shop/" + p.text(true)
	}
	return []string{"ClusterNetworkPolicy " + p.text(false), "NetworkPolicy " + p.text(false) + "/shop", "shop/" + p.text(false), "NetworkPolicy shop-" + p.text(false) + "/x"}[p.hidden.IntN(4)]
}

// deciding is a policy of the cluster that decides. Its rule 3 is the one.
const deciding = "ClusterNetworkPolicy own-deciding"

// end draws an end of a flow: a pod of the client, or an address outside of the cluster.
func (p pair) end() explain.End {
	var e explain.End
	p.secrets(&e)
	e.Address, e.Unknown, e.Pod = p.text(true), false, ""
	if p.visible.IntN(3) > 0 {
		e.Pod = "shop/" + p.text(true)
	}
	e.Node = p.text(p.scope.Nodes)
	return e
}

// decision draws a decision of an own policy, of the deciding one, or of none.
func (p pair) decision() (d explain.Decision) {
	p.some(&d)
	three := 3
	switch p.visible.IntN(3) {
	case 0:
		d.Policy = p.policy(true)
	case 1:
		d.Policy, d.Rule = deciding, &three
	default:
		d.Policy, d.Rule = "", nil
	}
	return d
}

// side draws the explanation of one end.
func (p pair) side() (s explain.Side) {
	all, hides := p.scope.All, !p.scope.All && p.visible.IntN(2) == 0
	p.secrets(&s)
	s.Direction, s.Pod, s.OS, s.Node, s.Decision = p.text(true), "shop/"+p.text(true), "own-os", p.text(p.scope.Nodes), p.decision()
	p.some(&s.Notes)
	s.Isolating = list(p, hides, func(visible bool) string { return p.policy(visible || all) })
	s.Rules = list(p, hides, func(visible bool) (r explain.Rule) {
		p.is(visible, &r)
		switch of := p.visible; {
		case visible && s.Decision.Policy == deciding && of.IntN(3) == 0:
			r.Policy, r.Rule = deciding, 3
		case !visible && s.Decision.Policy == deciding && p.hidden.IntN(2) == 0:
			r.Policy = deciding // another of its rules
		default:
			r.Policy = p.policy(visible)
		}
		return r
	})
	s.Changes = list(p, hides, func(visible bool) (c explain.Change) {
		p.is(visible, &c)
		c.Policy = p.policy(visible)
		if !visible && s.Decision.Policy == deciding && p.hidden.IntN(2) == 0 {
			c.Policy = deciding // another of its rules
		}
		if visible {
			c.Then = p.decision()
			if c.Then.Policy == deciding && s.Decision.Policy != deciding && !all {
				verdict := c.Then.Verdict
				p.secrets(&c.Then)
				c.Then.Verdict, c.Then.Policy = verdict, p.policy(false)
			}
		}
		return c
	})
	s.Suggestion = nil
	if p.visible.IntN(2) == 0 {
		s.Suggestion = new(explain.Suggestion)
		p.some(s.Suggestion)
		s.Suggestion.Policy, s.Suggestion.Note = p.policy(true), p.text(all)
	}
	s.Enforced = nil
	for range p.visible.IntN(3) {
		var e explain.Enforcement
		p.is(p.scope.Nodes, &e)
		e.Verdict, e.Exact = p.text(true), p.visible.IntN(2) == 0
		if p.visible.IntN(2) == 0 {
			e.Reasons = nil
		}
		s.Enforced = append(s.Enforced, e)
	}
	return s
}

// report draws an explanation.
func (p pair) report() any {
	x := &explain.Report{}
	p.secrets(x)
	x.From, x.To, x.Protocol, x.Port, x.Verdict, x.Sides = p.end(), p.end(), p.text(true), uint16(p.visible.IntN(1<<16)), p.text(true), nil
	p.some(&x.Notes)
	p.is(p.scope.All, &x.DenyLists)
	for range p.visible.IntN(3) {
		x.Sides = append(x.Sides, p.side())
	}
	return Report(p.scope, x)
}

// shuffled returns a list in a hidden order.
func shuffled[T any](p pair, all []T) []T {
	p.hidden.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// system draws the nodes of an operating system.
func (p pair) system(os model.OS) (s usage.System) {
	p.some(&s)
	s.OS, s.Missing = os, nil
	p.is(p.scope.All, &s.Rest)
	for range p.visible.IntN(4) {
		m := usage.Missing{Answered: p.visible.IntN(2) == 0}
		m.Node, m.Why = p.text(p.scope.Nodes), p.text(p.scope.Nodes)
		s.Missing = append(s.Missing, m)
	}
	if !p.scope.Nodes {
		s.Missing = shuffled(p, s.Missing)
	}
	return s
}

// where draws nodes that do not enforce a construct: how many they are is visible.
func (p pair) where() (all []usage.Where) {
	for _, os := range []model.OS{model.Linux, model.Windows} {
		if p.visible.IntN(2) == 0 {
			continue
		}
		var names []string
		for n := range 1 + p.visible.IntN(3) {
			names = append(names, fmt.Sprint(p.text(p.scope.Nodes), "-", n))
		}
		parts := 1
		if !p.scope.Nodes {
			parts += p.hidden.IntN(2)
		}
		for n := range parts { // several platforms, with some of the nodes in common
			var w usage.Where
			p.is(p.scope.Nodes, &w)
			w.OS, w.Effect, w.Nodes, w.Count = os, "own-effect", names[n*len(names)/2:], len(names)
			all = append(all, w)
		}
	}
	if !p.scope.Nodes {
		all = shuffled(p, all)
	}
	return all
}

// total draws the numbers of nodes.
func (p pair) total() any {
	t := &usage.Total{}
	p.secrets(t)
	t.Systems, t.Policies, t.Unlisted = nil, make(map[string]*usage.PolicyTotal), p.visible.IntN(10)
	for _, os := range []model.OS{model.Linux, usage.Unknown, model.Windows} {
		t.Systems = append(t.Systems, p.system(os))
	}
	list(p, !p.scope.All, func(visible bool) bool {
		var one usage.PolicyTotal
		p.is(visible, &one)
		t.Policies[p.policy(visible)] = &one
		return visible
	})
	t.Inexact = list(p, !p.scope.All, func(visible bool) (c usage.Construct) {
		p.is(visible, &c)
		c.Policy = p.policy(visible)
		if visible {
			c.On = p.where()
		}
		return c
	})
	return Usage(p.scope, t)
}

var secretNumbers = regexp.MustCompile(`\b7\d{6}\b`)

// TestLeaksOfAnswers shows generated explanations and numbers to clients with different rights. No hidden text or number is left,
// and answers that differ only in what is hidden are the same. ISTHMUS_LEAKS sets the number of each to a tenth of it.
func TestLeaksOfAnswers(t *testing.T) {
	count := max(1, leaks(t)/10)
	scopes := []access.Scope{{Namespaces: []string{"shop"}}, {Namespaces: []string{"pay", "shop"}, Nodes: true}, {All: true}, {Namespaces: []string{"shop"}, Nodes: true}}
	for name, draw := range map[string]func(pair) any{"explanations": pair.report, "numbers": pair.total} {
		shown, leaked := make(map[int]int), 0 // by scope
		first := rand.Uint64()
		for n := range count {
			seed := first + uint64(n)
			of := n % len(scopes)
			answer := func(hidden uint64) string {
				raw, err := json.Marshal(draw(pair{rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, hidden)), scopes[of]}))
				if err != nil {
					t.Fatal(err)
				}
				return string(raw)
			}
			one, other := answer(1), answer(2)
			leak := ""
			switch {
			case one != other:
				leak = "two that differ in hidden parts look different"
			case strings.Contains(one, secret):
				leak = "a hidden text is shown"
			case secretNumbers.MatchString(one):
				leak = "a hidden number is shown"
			}
			if strings.Contains(one, "shop/own-") {
				shown[of]++
			}
			if leak != "" {
				t.Errorf("%s, seed %d, %+v: %s:\n%s\nand\n%s", name, seed, scopes[of], leak, one, other)
				if leaked++; leaked > 3 {
					t.FailNow()
				}
			}
		}
		t.Logf("access: %d %s, shown by scope %v, %d leaks", count, name, shown, leaked)
		for of := range scopes {
			if count >= 1000 && shown[of] < count/20 {
				t.Errorf("%s: only %d of %d show something to %+v: the test proves nothing", name, shown[of], count, scopes[of])
			}
		}
	}
}

// An administrator sees an explanation and numbers whole, and who reads all namespaces sees all policies.
func TestAnswersShown(t *testing.T) {
	p := pair{rand.New(rand.NewPCG(1, 1)), rand.New(rand.NewPCG(1, 2)), access.Everything}
	var x explain.Report
	var total usage.Total
	p.some(&x)
	p.some(&total)
	if Report(access.Everything, &x) != &x || Usage(access.Everything, &total) != &total {
		t.Error("an administrator does not see the whole")
	}
	got := Usage(access.Scope{All: true}, &total)
	if len(got.Policies) != len(total.Policies) || len(got.Inexact) != len(total.Inexact) || got.Systems[0].Rest == nil || got.Systems[0].Missing[0].Node != "" || got.Systems[0].Counted != total.Systems[0].Counted {
		t.Errorf("a reader of all namespaces: %+v", got)
	}
	team := Usage(access.Scope{Namespaces: []string{"shop"}}, &usage.Total{Systems: []usage.System{{OS: model.Linux, Nodes: 3, Counted: 2, Allowed: 4, Denied: 5, Missing: make([]usage.Missing, 1)}},
		Policies: map[string]*usage.PolicyTotal{"NetworkPolicy shop/api": {Flows: usage.Number{Allowed: 7}}}})
	if s := team.Systems[0]; team.Policies["NetworkPolicy shop/api"].Flows.Allowed != 7 || s.Nodes != 3 || s.Counted != 2 || s.Allowed != 4 || s.Denied != 5 || len(s.Missing) != 1 || s.Rest != nil {
		t.Errorf("a team does not see what its numbers lack: %+v", team)
	}
}
