// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/model"
)

// Problems lists remarks about a cluster that was read. None of them prevented the rest from
// being read.
type Problems struct {
	// Bad are documents with errors. The commands skip them; an agent would keep the last
	// good state instead.
	Bad []string
	// BadAt and WarnedAt are the places of Bad and Warnings, if files have them.
	BadAt, WarnedAt []model.Place
	// Warnings are remarks on accepted documents, and on invalid objects of an API server.
	Warnings []string
	// Assumed describes what the command added because a running cluster would.
	Assumed []string
}

// Report writes problems to stderr. Bad documents are an error unless --skip-bad is
// set.
func (s *Source) Report(stderr io.Writer, p Problems) error {
	if s.quiet {
		p.Warnings, p.Assumed = nil, nil
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(stderr, "isthmusctl: %s\n", w)
	}
	for _, a := range p.Assumed {
		fmt.Fprintf(stderr, "isthmusctl: assumed: %s\n", a)
	}
	if len(p.Bad) == 0 {
		return nil
	}
	if s.SkipBad {
		s.leftOut += len(p.Bad)
		for _, b := range p.Bad {
			fmt.Fprintf(stderr, "isthmusctl: skipped: %s\n", b)
		}
		return nil
	}
	more := ""
	if n := len(p.Bad) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more errors)", n)
	}
	return fmt.Errorf("%s%s; --skip-bad skips such documents, isthmusctl lint lists all errors", p.Bad[0], more)
}

// Quiet reports whether remarks on stderr are not wanted.
func (s *Source) Quiet() bool { return s.quiet }

// Complete turns an answer about a part of the manifests into an error: without the rest
// neither answer is certain.
func (s *Source) Complete(err error) error {
	if s.leftOut > 0 && (err == nil || errors.Is(err, cli.ErrNo)) {
		return fmt.Errorf("the answer covers only a part of the manifests: documents with %d errors were skipped", s.leftOut)
	}
	return err
}
