// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
)

// Reading selects how manifests are validated. LoadDir, Parse and ParseFiles validate objects as newly
// written.
type Reading struct {
	Limits Limits
	// Stored validates objects as an API server does that stores them already, such as objects of a live
	// cluster that kubectl has printed. It applies the rules that held when they were written. Invalid
	// objects are warnings, and Objects holds what an agent enforces of them. Workloads represent pods only
	// if no manifest is a Pod.
	Stored bool
}

func (r Reading) strictness() convert.Strictness {
	if r.Stored {
		return convert.Stored
	}
	return convert.Written
}

// Dir is LoadDir with this Reading.
func (r Reading) Dir(ctx context.Context, dir string) (model.Objects, []Warning, []DocumentError) {
	t := readTree(ctx, dir, r.Limits)
	o, warnings, errs := t.load(r).finish()
	return o, warnings, append(t.errors, errs...)
}

// Parse is the function Parse with this Reading.
func (r Reading) Parse(name string, data []byte) (model.Objects, []Warning, []DocumentError) {
	return r.ParseFiles([]File{{Name: name, Data: data}})
}

// ParseFiles is the function ParseFiles with this Reading.
func (r Reading) ParseFiles(files []File) (model.Objects, []Warning, []DocumentError) {
	l := newLoader(r)
	for _, f := range files {
		if f.Open != nil {
			l.stream(f.Name, f.Open)
			continue
		}
		l.file(f.Name, f.Data)
	}
	return l.finish()
}
