// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
)

// inexactRow is a construct that is not enforced exactly.
type inexactRow struct {
	Policy, Rule, Construct string
	On                      []string
}

// inexactList is the page of such constructs.
type inexactList struct {
	listed[inexactRow]
	// What heads the list.
	What      string
	Namespace string
	// Reported says which nodes have reported; empty if platforms are compared.
	Reported string
}

func (h *Handler) notExact(r *http.Request) (*document, error) {
	p, err := parse(r.URL.RawQuery, "find", "part", "namespace")
	if err != nil {
		return nil, badRequest(err)
	}
	l := &inexactList{listed: listed[inexactRow]{params: p, Find: p.find, slice: cut[inexactRow](nil, 1, inexactRows)}, Namespace: p.namespace}
	d := &document{Template: "inexact", Title: "Not enforced exactly", Body: l}
	if err := h.allowNamespace(r.Context(), p.namespace); err != nil {
		return d, l.refuse(d, err)
	}
	switch {
	case h.config.Inexact != nil:
		h.compared(l, d)
	case h.config.Usage != nil:
		return d, h.reported(r.Context(), l, d)
	default:
		l.Note = "Reports about enforcement are not available."
	}
	return d, nil
}

// show shows a part of the rows.
func (l *inexactList) show(all []inexactRow) {
	all = filtered(all, l.find, func(r inexactRow) string { return r.Policy })
	all = slices.DeleteFunc(slices.Clone(all), func(r inexactRow) bool { return l.namespace != "" && usage.NamespaceOf(r.Policy) != l.namespace })
	l.slice = cut(all, l.part, inexactRows)
}

// compared lists what platforms do not enforce exactly.
func (h *Handler) compared(l *inexactList, d *document) {
	l.What = "Constructs that some platform does not enforce exactly"
	c := h.config.Cluster()
	list, of, err := h.inexact.get(h.ctx, c, h.config.Inexact)
	switch {
	case of == nil:
		l.Note, d.Refresh = "This is being computed. The page loads again by itself.", 3
		return
	case err != nil:
		l.Note = "No answer: " + err.Error()
	case of != c:
		l.Note = "This is about the cluster at " + of.At.UTC().Format(timeFormat) + ", and is being computed again."
	}
	var all []inexactRow
	for _, x := range list {
		row := inexactRow{Policy: x.Policy, Rule: fmt.Sprintf("%s %d", x.Direction, x.Rule), Construct: x.Construct}
		for _, e := range x.On {
			if e.Reason != "" {
				row.On = append(row.On, e.Platform+" "+e.Result+": "+shorten(e.Reason, 200))
			}
		}
		all = append(all, row)
	}
	l.show(all)
}

// reported lists what nodes report.
func (h *Handler) reported(ctx context.Context, l *inexactList, d *document) error {
	l.What = "Constructs that some node does not enforce exactly"
	c, err := h.counted(ctx, l.namespace)
	if err != nil {
		return l.refuse(d, err)
	}
	if c.Total == nil {
		l.Note = "No answer: " + c.Why
		return nil
	}
	l.Reported = c.answers()
	if c.Unlisted > 0 {
		l.Note = fmt.Sprintf("Entries that nodes left out, because there are too many: %d.", c.Unlisted)
	}
	var all []inexactRow
	for _, x := range c.Inexact {
		row := inexactRow{Policy: x.Policy, Rule: fmt.Sprintf("%s %d", x.Direction, x.Rule), Construct: x.Construct}
		if x.Rule < 0 {
			row.Rule = "the whole object"
		}
		for _, w := range x.On {
			row.On = append(row.On, whereText(&w))
		}
		all = append(all, row)
	}
	l.show(all)
	return nil
}

// whereText says what nodes do instead. Their names may be hidden.
func whereText(w *usage.Where) string {
	platform := string(w.OS)
	if w.Platform != "" {
		platform += " (" + shorten(w.Platform, 60) + ")"
	}
	on := plural(w.Count, "node")
	if named := len(w.Nodes); named > 0 {
		names := make([]string, 0, 3)
		for _, n := range w.Nodes[:min(3, named)] {
			names = append(names, shorten(n, 60))
		}
		on += ": " + strings.Join(names, ", ")
		if named > 3 {
			on += fmt.Sprintf(" and %d more", named-3)
		}
	}
	return fmt.Sprintf("%s %s: %s (%s)", platform, w.Effect, shorten(w.Reason, 200), on)
}

// answers says which nodes have reported.
func (c *counted) answers() string {
	nodes, answered := 0, 0
	var silent []usage.Missing
	for i := range c.Systems {
		s := &c.Systems[i]
		nodes, answered = nodes+s.Nodes, answered+s.Answered
		for _, m := range s.Missing {
			if !m.Answered {
				silent = append(silent, m)
			}
		}
	}
	text := fmt.Sprintf("Reported by %d of %s.", answered, plural(nodes, "node"))
	if missing := missingText(silent); missing != "" {
		text += " Without a report: " + missing + "."
	}
	return text
}

// inexact holds what platforms do not enforce exactly. It is computed in the background, because that takes long.
type inexact struct {
	mutex   sync.Mutex
	running bool
	of      *Cluster // of the answer; nil before the first one
	list    []lint.Construct
	err     error
}

// get returns the last answer, and the cluster that it is about; nil if there is none yet. It computes the answer for the
// given cluster unless it is known or computed already. The context ends the computation.
func (x *inexact) get(ctx context.Context, c *Cluster, compute func(context.Context, *Cluster) ([]lint.Construct, error)) ([]lint.Construct, *Cluster, error) {
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if x.of != c && !x.running {
		x.running = true
		go func() {
			list, err := compute(ctx, c)
			list = slices.DeleteFunc(list, func(c lint.Construct) bool {
				return !slices.ContainsFunc(c.On, func(e lint.Exactness) bool { return e.Reason != "" })
			})
			x.mutex.Lock()
			defer x.mutex.Unlock()
			x.running, x.of, x.list, x.err = false, c, list, err
		}()
	}
	return x.list, x.of, x.err
}
