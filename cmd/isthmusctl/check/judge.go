// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// outcome is the result of a case.
type outcome struct {
	number          int
	counts          bool // it is a case, and not an error about an unreadable file
	queries, failed int
	// impossible is the number of queries about packets that cannot exist.
	impossible int
	text       strings.Builder // describes the failures
	at, title  string
	results    []result // of the queries, if they are wanted
	warnings   []string
	bad        error // the error of the file
}

// judge runs cases one after the other. It belongs to one goroutine.
type judge struct {
	engines []string
	// program is kept from case to case, because loading it is slow.
	program *engine.PerNode
	reading manifests.Reading
	// keep is true if the results of single queries are wanted.
	keep bool
}

// result is one query, or the validation of one object.
type result struct {
	at, name string
	failure  string // "" if it passed
}

// note records the result of a query.
func (j *judge) note(o *outcome, at, name, failure string) {
	if j.keep {
		o.results = append(o.results, result{at, name, failure})
	}
}

func (j *judge) close() {
	if j.program != nil {
		j.program.Close()
	}
}

// fresh returns engines without a cluster. Only the program engine keeps its maps: the
// writes that a node would make bring them from one case to the next.
func (j *judge) fresh() ([]engine.Engine, error) {
	var all []engine.Engine
	for _, name := range j.engines {
		if name == "program" {
			if j.program == nil {
				j.program = newProgram()
			}
			all = append(all, j.program)
			continue
		}
		e, err := newEngine(name)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func (j *judge) judge(c *testCase) *outcome {
	o := &outcome{number: c.number, at: c.at, title: c.title, warnings: c.warnings, bad: c.bad}
	if c.bad != nil {
		return o
	}
	o.counts = true
	if c.validation != nil {
		c.validation.judge(c, o)
		j.note(o, c.at, c.title, o.text.String())
		return o
	}
	objects, warnings, errs := j.reading.ParseFiles(c.files)
	for _, w := range warnings {
		if c.complete && !strings.HasPrefix(w.Detail, "also in ") { // a test may replace objects of the shared manifests
			o.warnings = append(o.warnings, w.String())
		}
	}
	if len(errs) > 0 {
		o.queries, o.failed = len(c.queries), len(c.queries)
		if c.complete { // a person wrote this file, so that line numbers help
			o.bad = errs[0]
			return o
		}
		fmt.Fprintf(&o.text, "FAIL %s %s: all %d queries: the objects are not accepted: %s\n", c.at, c.title, len(c.queries), about(errs[0]))
		for _, q := range c.queries {
			j.note(o, where(q.at, c.at), q.String(), o.text.String())
		}
		return o
	}
	if c.complete {
		complete.Place(&objects)
	}
	snapshot := objects.Snapshot()
	if c.complete { // a file of cases has queries about addresses as packets carry them
		services := service.New(snapshot, objects.Services, objects.EndpointSlices)
		if c.queries, o.bad = backends(c, snapshot, services); o.bad != nil {
			return o
		}
	}
	o.bad = j.ask(c, snapshot, o)
	return o
}

// about names the object and the field of an error in a case of JSON Lines, where objects
// have no line numbers of their own.
func about(e manifests.DocumentError) string {
	e.File, e.Document, e.Line = "objects", 0, 0
	return e.Error()
}

// where returns the line of a query, or else that of its case.
func where(query, testCase string) string {
	if query != "" {
		return query
	}
	return testCase
}

// question is a query in its cluster.
type question struct {
	*testQuery
	flow  model.Flow
	cells []engine.Question
	says  []string // unexpected answers of engines
	// asked is the number of engines that could decide the query.
	asked int
	// dropped are the entries of deny lists that drop the flow, whatever policy says.
	dropped []string
}

// ask runs the queries of a case in all engines.
func (j *judge) ask(c *testCase, s *model.Snapshot, o *outcome) error {
	asked := make([]question, len(c.queries))
	cluster := engine.Compile(s, nil)
	owners, denySet := s.Owners(), compile.DenySet(s)
	for i := range c.queries {
		q := question{testQuery: &c.queries[i]}
		var err error
		if f := q.forwarded; f != nil {
			q.flow, q.cells = f.Ingress, cluster.Forwarded(f.Egress, f.Ingress)
			q.dropped = explain.Denied(denySet, s, owners, f.Egress.Src, f.Ingress.Dst)
		} else if q.flow, err = q.testQuery.flow(s, c.complete); err != nil {
			return fmt.Errorf("%s: %s: %w", where(q.at, c.at), c.title, err)
		} else {
			q.cells = cluster.Questions(q.flow)
			q.dropped = explain.Denied(denySet, s, owners, q.flow.Src, q.flow.Dst)
		}
		if len(q.dropped) > 0 && q.want == model.Allow {
			q.says = append(q.says, "a deny list drops it")
		}
		asked[i] = q
	}
	o.queries = len(asked)
	engines, err := j.fresh()
	if err != nil {
		return err
	}
	for _, e := range engines {
		if err := e.Load(cluster); err != nil {
			return fmt.Errorf("%s: %s: engine %s: %w", c.at, c.title, e.Name(), err)
		}
		for i := range asked {
			asked[i].put(e)
		}
	}
	reference := policy.NewEvaluator(s)
	for i := range asked {
		if asked[i].asked < len(engines) {
			o.impossible++
		}
		if asked[i].asked == 0 {
			asked[i].says = append(asked[i].says, "no such packet can exist, and every selected engine needs one")
		}
		var text strings.Builder
		if len(asked[i].says) > 0 {
			o.failed++
			asked[i].explain(c, &text, cluster, reference)
			o.text.WriteString(text.String())
		}
		j.note(o, where(asked[i].at, c.at), asked[i].testQuery.String(), text.String())
	}
	for _, node := range slices.Sorted(maps.Keys(cluster.Unsupported)) {
		for _, u := range cluster.Unsupported[node] {
			o.warnings = append(o.warnings, fmt.Sprintf("%s: %s: node %q: %s", c.at, c.title, node, u))
		}
	}
	return nil
}

// put puts the query to one engine and records an unexpected answer. It skips engines that
// build packets when no such packet can exist. No engine decides what a deny list drops.
func (q *question) put(e engine.Engine) {
	if len(q.dropped) > 0 {
		q.asked++
		return
	}
	verdict := model.Allow
	for _, cell := range q.cells {
		v, err := e.Decide(cell)
		if errors.Is(err, engine.ErrImpossible) {
			return
		}
		if err != nil {
			q.asked++
			q.says = append(q.says, fmt.Sprintf("%s: %v", e.Name(), err))
			return
		}
		verdict = min(verdict, v)
	}
	q.asked++
	if verdict != q.want {
		q.says = append(q.says, fmt.Sprintf("%s says %s", e.Name(), verdict))
	}
}

// explain prints a query that failed, and the decision of the reference evaluator and of the
// tables at both ends.
func (q *question) explain(c *testCase, out *strings.Builder, cluster *engine.Cluster, reference *policy.Evaluator) {
	fmt.Fprintf(out, "FAIL %s %s: %s: want %s: %s\n", where(q.at, c.at), c.title, q.testQuery, q.want, strings.Join(q.says, "; "))
	if len(q.dropped) > 0 {
		fmt.Fprintf(out, "  dropped before policy decides: %s\n", strings.Join(q.dropped, ", "))
	}
	if len(q.cells) == 0 {
		fmt.Fprintf(out, "  neither %s nor %s is a pod that policies apply to\n", q.flow.Src, q.flow.Dst)
	}
	for _, cell := range q.cells {
		end := "to"
		if cell.Direction == model.Ingress {
			end = "from"
		}
		fmt.Fprintf(out, "  %s of %s, %s %s\n", cell.Direction, cell.Pod.PodID, end, cell.Remote)
		fmt.Fprintf(out, "    evaluate: %s\n", reference.Endpoint(cell.Pod, cell.Direction, cell.Remote, cell.Protocol, cell.Port))
		fmt.Fprintf(out, "    tables:   %s\n", cluster.States[cell.Node].Policy.Decide(cell.Endpoint, cell.Direction, cell.Remote, cell.Protocol, cell.Port))
	}
}
