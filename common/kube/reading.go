// SPDX-License-Identifier: Apache-2.0

package kube

import "context"

// Reading says how manifests are read. LoadDir, Parse and ParseFiles read objects as
// someone writes them.
type Reading struct {
	Limits Limits
	// Stored judges objects as an API server does that stores them already, such as
	// those of a live cluster that kubectl has printed: by the rules that held when they
	// were written. Invalid objects are warned of, and what an agent enforces of them
	// is in the Objects. Workloads stand for pods only if no manifest is a Pod.
	Stored bool
}

func (r Reading) strictness() strictness {
	if r.Stored {
		return stored
	}
	return written
}

// Dir is LoadDir.
func (r Reading) Dir(ctx context.Context, dir string) (Objects, []Warning, []DocumentError) {
	t := readTree(ctx, dir, r.Limits)
	o, warnings, errs := t.load(r).finish()
	return o, warnings, append(t.errors, errs...)
}

// Parse is Parse.
func (r Reading) Parse(name string, data []byte) (Objects, []Warning, []DocumentError) {
	return r.ParseFiles([]File{{name, data}})
}

// ParseFiles is ParseFiles.
func (r Reading) ParseFiles(files []File) (Objects, []Warning, []DocumentError) {
	l := newLoader(r)
	for _, f := range files {
		l.file(f.Name, f.Data)
	}
	return l.finish()
}
