// SPDX-License-Identifier: Apache-2.0

package query

import (
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/annotate"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
)

// check rejects invalid values of flags.
func (o *lintOptions) check() error {
	if err := cli.CheckOutput(o.output, lintForms...); err != nil {
		return err
	}
	if o.all && len(o.spaces) > 0 {
		return cli.Usagef("--all-namespaces and --namespace: give one of them")
	}
	known := slices.Sorted(maps.Keys(lint.Checks()))
	for _, name := range o.ignored {
		if !slices.Contains(known, name) {
			return cli.Usagef("--ignore %q: no such check; there are: %s", name, strings.Join(known, ", "))
		}
		if name == "bad-document" {
			return cli.Usagef("--ignore bad-document: the answer would cover only a part of the manifests; fix the documents")
		}
	}
	return nil
}

// known rejects a namespace that no object has: a gate with a misspelt one would never find anything. A document with an
// error may be in it, and is found in any case.
func (o *lintOptions) known(l *lint.Cluster, found []lint.Finding) error {
	if o.AllowEmpty || slices.ContainsFunc(found, func(f lint.Finding) bool { return f.Check == "bad-document" }) {
		return nil
	}
	for _, name := range o.spaces {
		if _, ok := l.Snapshot.Namespaces.Get(name); !ok {
			return cli.Usagef("no namespace %s: check the spelling", name)
		}
	}
	return nil
}

// filter removes findings that are not wanted.
func (o *lintOptions) filter(r *lint.Report) {
	r.Findings = slices.DeleteFunc(r.Findings, func(f lint.Finding) bool {
		if slices.Contains(o.ignored, f.Check) {
			return true
		}
		if len(o.spaces) == 0 || f.Policy == "" {
			return false
		}
		_, name, _ := strings.Cut(f.Policy, " ")
		namespace, _, namespaced := strings.Cut(name, "/")
		return !namespaced || !slices.Contains(o.spaces, namespace)
	})
}

// locate adds the places of policies.
func (o *lintOptions) locate(r *lint.Report) {
	for i := range r.Findings {
		f := &r.Findings[i]
		if at, ok := o.Places[f.Policy]; ok && f.Place == nil {
			f.Place = &at
		}
	}
}

// annotations returns the findings for the forms of continuous integration.
func annotations(r *lint.Report) []annotate.Finding {
	all := make([]annotate.Finding, len(r.Findings))
	for i, f := range r.Findings {
		a := annotate.Finding{Level: f.Severity.String(), Rule: f.Check, Message: f.Message}
		if f.Policy != "" {
			where := f
			where.Place = nil
			_, text, _ := strings.Cut(where.String(), " ")
			a.Message = strings.TrimSpace(text)
		}
		if f.Place != nil {
			a.File, a.Line = f.Place.File, f.Place.Line
		}
		all[i] = a
	}
	return all
}
