// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
)

// policyRow is a policy in a list.
type policyRow struct {
	Name, Tier, Priority, Isolates string
	Rules                          int
	Place                          string
	// Href is the path of its page, below that of the list.
	Href string
	// Flows and Packets are what it decided on Linux and Windows nodes.
	Flows, Packets string
}

// Policies lists the policies whose names contain a text, in the order of evaluation: of a namespace, or of all if it is empty.
func (v *View) Policies(find, namespace string) []policyRow {
	var all []policyRow
	for _, p := range v.policies {
		name := p.Origin.String()
		if strings.Contains(name, find) && (namespace == "" || p.Origin.Namespace == namespace) {
			all = append(all, v.policyRow(p))
		}
	}
	return all
}

func (v *View) policyRow(p *model.Policy) policyRow {
	name := p.Origin.String()
	r := policyRow{Name: name, Tier: p.Tier.String(), Rules: len(p.Rules[0]) + len(p.Rules[1]),
		Place: v.cluster.Places[name].String(), Href: url.PathEscape(p.Origin.Kind)}
	if p.Origin.Namespace != "" {
		r.Href += "/" + url.PathEscape(p.Origin.Namespace)
	}
	r.Href += "/" + url.PathEscape(p.Origin.Name)
	if p.Tier != model.TierNetworkPolicy && p.Priority >= 0 {
		r.Priority = fmt.Sprint(p.Priority)
	}
	var isolates []string
	for _, d := range model.Directions {
		if p.Isolates[d] {
			isolates = append(isolates, d.String())
		}
	}
	r.Isolates = strings.Join(isolates, ", ")
	return r
}

// ruleRow is a rule of a policy, or the isolation of pods by it.
type ruleRow struct {
	Rule, Action   string
	Flows, Packets string
}

// rules lists the rules of a policy in the order of the object, each direction with the isolation at its end.
func (c *counted) rules(p *model.Policy) (all []ruleRow) {
	of := c.policy(p.Origin)
	row := func(d model.Direction, rule int, name, action string) {
		var t usage.RuleTotal
		for i := range of.Rules {
			if of.Rules[i].Direction == d.String() && of.Rules[i].Rule == rule {
				t = of.Rules[i]
			}
		}
		all = append(all, ruleRow{name, action, c.cell(model.Linux, t.Flows), c.cell(model.Windows, t.Packets)})
	}
	for _, d := range model.Directions {
		for i := range p.Rules[d] {
			r := &p.Rules[d][i]
			name := fmt.Sprintf("%s rule %d", d, r.Index)
			if r.Name != "" {
				name += " (" + r.Name + ")"
			}
			row(d, r.Index, name, r.Action.String())
		}
		if p.Isolates[d] {
			row(d, -1, "isolation, "+d.String(), "denies what no rule accepts")
		}
	}
	return all
}

// policyList is the page of all policies, and onePolicy that of one.
type policyList struct {
	listed[policyRow]
	Counted   *counted
	Namespace string
}

type onePolicy struct {
	listed[ruleRow]
	policyRow
	Counted *counted
}

// errNamespace is the error of a parameter that names no namespace.
var errNamespace = errors.New("namespace: give the name of a namespace: lower case letters, digits and -")

var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// allowNamespace returns an error if a text is no namespace, or if the client may not read it. Empty stands for all.
func (h *Handler) allowNamespace(ctx context.Context, namespace string) error {
	if namespace != "" && !namespaceName.MatchString(namespace) {
		return badRequest(errNamespace)
	}
	if h.config.AllowNamespace == nil {
		return nil
	}
	return h.config.AllowNamespace(ctx, namespace)
}

func (h *Handler) policies(r *http.Request) (*document, error) {
	p, err := parse(r.URL.RawQuery, "find", "part", "namespace")
	if err != nil {
		return nil, badRequest(err)
	}
	l := &policyList{listed: listed[policyRow]{params: p, Find: p.find}, Counted: &counted{}, Namespace: p.namespace}
	d := &document{Template: "policies", Title: "Policies", Body: l}
	if err := h.allowNamespace(r.Context(), p.namespace); err != nil {
		return d, l.refuse(d, err)
	}
	if l.Counted, err = h.counted(r.Context(), p.namespace); err != nil {
		return d, l.refuse(d, err)
	}
	l.slice = cut(h.current().Policies(p.find, p.namespace), p.part, policyRows)
	for i := range l.Items {
		of := l.Counted.total(l.Items[i].Name)
		l.Items[i].Flows, l.Items[i].Packets = l.Counted.cell(model.Linux, of.Flows), l.Counted.cell(model.Windows, of.Packets)
	}
	return d, nil
}

// refuse shows why a client sees no list, beside the form for another one. Other errors have no page of their own.
func (l *listed[T]) refuse(d *document, err error) error {
	p, ok := refused(err)
	if !ok {
		return err
	}
	d.Status, l.Problem = p.status, err.Error()
	return nil
}

func (h *Handler) policy(r *http.Request) (*document, error) {
	p, err := parse(r.URL.RawQuery, "part")
	if err != nil {
		return nil, badRequest(err)
	}
	o := model.Origin{Kind: r.PathValue("kind"), Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if err := h.allowNamespace(r.Context(), o.Namespace); err != nil {
		return nil, err
	}
	v := h.current()
	found, ok := v.cluster.Snapshot.Policies.Get(o)
	if !ok {
		return nil, notFound(fmt.Errorf("there is no %s: check the spelling, or load the list again", shorten(o.String(), 400)))
	}
	one := &onePolicy{listed: listed[ruleRow]{params: p}, policyRow: v.policyRow(found)}
	if one.Counted, err = h.counted(r.Context(), o.Namespace); err != nil {
		return nil, err
	}
	one.slice = cut(one.Counted.rules(found), p.part, ruleRows)
	of := one.Counted.policy(o)
	one.Flows, one.Packets = one.Counted.cell(model.Linux, of.Flows), one.Counted.cell(model.Windows, of.Packets)
	return &document{Template: "policy", Title: found.Origin.String(), Body: one}, nil
}
