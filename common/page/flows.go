// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/httpd"
)

// Flow is a denied flow, as the client of a request may see it.
type Flow struct {
	Time string `json:"time"`
	From string `json:"from"`
	To   string `json:"to"`
	Port string `json:"port"`
	Why  string `json:"why"`
	Node string `json:"node"`
}

// FlowQuery selects denied flows.
type FlowQuery struct {
	// Namespace is that of one end; empty for all.
	Namespace string
	// Last is the number of kept flows. With Follow new ones follow until the context ends.
	Last   int
	Follow bool
}

// FlowEvent is an answer to a FlowQuery: a flow, lost flows, or the state of nodes. One with nothing says that there is an answer.
type FlowEvent struct {
	Flow *Flow
	// Lost is the number of flows, of any verdict, that were lost.
	Lost uint64
	// State is that of Nodes; Why may explain it.
	State NodeState
	Nodes []string
	Why   string
}

// NodeState says whether the flows of nodes arrive.
type NodeState int

// The states of nodes. Partial nodes do not report all flows.
const (
	Connected NodeState = iota + 1
	Unavailable
	Partial
)

const (
	// keptFlows is the number of kept flows that the page shows.
	keptFlows = 100
	// maxReasons bounds the reasons why nodes report not all flows, and maxNames the nodes that are named for one.
	maxReasons, maxNames = 10, 10
	// maxText bounds a text of a flow or of a node, in characters. Agents choose them.
	maxText = 300
	// eventTimeout bounds the time that a client takes for an event.
	eventTimeout = 10 * time.Second
)

// flowList is the page of denied flows.
type flowList struct {
	// Of says whose flows these are. Namespace is that of one end, and Problem says why there are no flows.
	Of, Namespace, Problem string
	// Events is the address of new flows.
	Events  string
	Rows    []Flow
	Missing named // nodes without an answer
	Partial []*partial
	// Lost is the number of flows, of any verdict, that were lost while those of the page came.
	Lost uint64
}

// named are the first names of a list, and whether there are more.
type named struct {
	Names []string
	More  bool
}

func (n *named) add(names []string) {
	free := min(maxNames-len(n.Names), len(names))
	for _, name := range names[:free] {
		n.Names = append(n.Names, shorten(name, maxText))
	}
	n.More = n.More || free < len(names)
}

// partial are nodes that report no flows or not all, for one reason.
type partial struct {
	Why   string
	Nodes named
}

// add adds an answer.
func (l *flowList) add(e FlowEvent) error {
	if e.Flow != nil {
		l.Rows = append(l.Rows, e.Flow.short())
		// A source may send more than the query selects.
		if len(l.Rows) > keptFlows {
			l.Rows = slices.Delete(l.Rows, 0, 1)
		}
	}
	l.Lost += e.Lost
	switch e.State {
	case Unavailable:
		l.Missing.add(e.Nodes)
	case Partial:
		l.addPartial(shorten(e.Why, maxText), e.Nodes)
	}
	return nil
}

// addPartial adds nodes that do not report all flows.
func (l *flowList) addPartial(why string, nodes []string) {
	of := func(why string) *partial {
		if i := slices.IndexFunc(l.Partial, func(p *partial) bool { return p.Why == why }); i >= 0 {
			return l.Partial[i]
		}
		return nil
	}
	if of(why) == nil && len(l.Partial) >= maxReasons {
		why = "other reasons"
	}
	p := of(why)
	if p == nil {
		p = &partial{Why: why}
		l.Partial = append(l.Partial, p)
	}
	p.Nodes.add(nodes)
}

// short bounds the texts of a flow.
func (f *Flow) short() Flow {
	cut := func(text string) string { return shorten(text, maxText) }
	return Flow{Time: cut(f.Time), From: cut(f.From), To: cut(f.To), Port: cut(f.Port), Why: cut(f.Why), Node: cut(f.Node)}
}

// flowQuery reads the parameters of the page of denied flows, and of its new flows.
func flowQuery(r *http.Request) (FlowQuery, error) {
	p, err := parse(r.URL.RawQuery, "namespace")
	if err != nil {
		return FlowQuery{}, badRequest(err)
	}
	if p.namespace != "" && !namespaceName.MatchString(p.namespace) {
		return FlowQuery{}, badRequest(errNamespace)
	}
	return FlowQuery{Namespace: p.namespace}, nil
}

// flows shows the newest kept flows that were denied.
func (h *Handler) flows(r *http.Request) (*document, error) {
	l := &flowList{Of: h.config.FlowsOf, Events: h.config.Base + "/flows/events"}
	d := &document{Template: "flows", Title: "Denied flows", Body: l, Now: time.Now(), Live: true}
	q, err := flowQuery(r)
	if l.Namespace = q.Namespace; q.Namespace != "" {
		l.Events += "?namespace=" + url.QueryEscape(q.Namespace)
	}
	switch {
	case err != nil:
	case h.config.Flows == nil:
		d.Live, l.Problem = false, "Flows are not available."
	default:
		q.Last = keptFlows
		err = h.config.Flows(r.Context(), q, l.add)
	}
	if err != nil {
		d.Status, d.Live, l.Problem = statusOf(err), false, err.Error()
	}
	slices.Reverse(l.Rows) // the newest first
	return d, nil
}

// flowEvents sends denied flows while they happen, as Server-Sent Events.
func (h *Handler) flowEvents(w http.ResponseWriter, r *http.Request) {
	q, err := flowQuery(r)
	if err == nil && h.config.Flows == nil {
		err = notFound(errors.New("flows are not available"))
	}
	begun := false
	if err == nil {
		q.Follow = true
		control := http.NewResponseController(w)
		// The server's limits are for pages. Here each event has a limit of its own.
		_ = control.SetReadDeadline(time.Time{})
		err = h.config.Flows(r.Context(), q, func(e FlowEvent) error {
			if !begun {
				begun = true
				httpd.Hold(r.Context()) // Flows has accepted the client, and bounds its streams
				w.Header().Set("Content-Type", "text/event-stream")
			}
			_ = control.SetWriteDeadline(time.Now().Add(eventTimeout))
			if _, err := w.Write(e.encode()); err != nil {
				return err
			}
			err := control.Flush()
			_ = control.SetWriteDeadline(time.Time{})
			return err
		})
	}
	switch {
	case begun && err != nil && r.Context().Err() == nil:
		_, _ = w.Write(encode("end", err.Error()))
	case begun:
	case err != nil:
		http.Error(w, err.Error(), statusOf(err))
	default:
		http.Error(w, "there are no new flows: load the page again", http.StatusServiceUnavailable)
	}
}

// encode returns the events of an answer for the script of the page; a comment if there is nothing to show.
func (e *FlowEvent) encode() []byte {
	var all []byte
	if e.Flow != nil {
		all = append(all, encode("flow", e.Flow.short())...)
	}
	if e.Lost > 0 {
		all = append(all, encode("lost", e.Lost)...)
	}
	if state := map[NodeState]string{Connected: "connected", Unavailable: "no answer", Partial: "does not report all flows"}[e.State]; state != "" {
		var nodes named
		nodes.add(e.Nodes)
		text := strings.Join(nodes.Names, ", ")
		if nodes.More {
			text += " and more"
		}
		if text += ": " + state; e.Why != "" {
			text += ": " + shorten(e.Why, maxText)
		}
		all = append(all, encode("node", text)...)
	}
	if len(all) == 0 {
		return []byte(": \n\n")
	}
	return all
}

// encode returns an event whose data is JSON, which has no line ends.
func encode(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil { // texts and numbers
		panic(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", name, text)
	return b.Bytes()
}
