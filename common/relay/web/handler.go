// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	hubblerelay "github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
)

//go:embed live.js templates.html
var files embed.FS

// kept is the number of kept flows that a page shows.
const kept = 100

// Relay answers calls as relay.Relay does. The context of a call holds the token of its client.
type Relay interface {
	GetFlows(*observer.GetFlowsRequest, grpc.ServerStreamingServer[observer.GetFlowsResponse]) error
}

// Cluster answers about reachability, policies and nodes, as relay.Relay does. The context of a call holds the token of its client.
type Cluster interface {
	// AllowNamespaces returns an error unless the client may read namespaces; without names, all.
	AllowNamespaces(ctx context.Context, namespaces ...string) error
	// AllowEnds returns an error unless the client may read flows between ends. Without ends it authenticates the client.
	AllowEnds(ctx context.Context, s *model.Snapshot, ends ...string) error
	// AllowNodes returns an error unless the client may read data of nodes.
	AllowNodes(ctx context.Context) error
	// Refresh makes Objects return objects. An error means that there are none.
	Refresh(ctx context.Context) error
	// Objects returns the objects that were read last.
	Objects() *page.Cluster
	// Explain explains a flow, as far as the client may see it.
	Explain(ctx context.Context, s *model.Snapshot, f model.Flow) (*explain.Report, error)
	// Agents returns what agents report about their nodes, if the client may read data of nodes.
	Agents(ctx context.Context) (map[string]page.Agent, error)
	// Usage returns what nodes report about the policies of a namespace, as far as the client may see it; if it is empty, of all.
	Usage(ctx context.Context, namespace string) (*usage.Total, error)
	// Notes says what the client must know about all pages of reachability.
	Notes(ctx context.Context) []string
}

// Handler serves the pages. It is safe for concurrent use.
type Handler struct {
	relay     Relay
	cluster   Cluster
	pages     *page.Handler // of the cluster
	mux       *http.ServeMux
	templates *template.Template
}

// New returns a Handler of a relay. Both arguments are the relay.
func New(r Relay, c Cluster) (*Handler, error) {
	t, err := template.ParseFS(files, "templates.html")
	if err != nil {
		return nil, fmt.Errorf("read templates of pages: %w", err)
	}
	pages, err := newPages(c)
	if err != nil {
		return nil, err
	}
	h := &Handler{relay: r, cluster: c, pages: pages, mux: http.NewServeMux(), templates: t}
	h.mux.HandleFunc("GET /{$}", h.denied)
	h.mux.HandleFunc("GET /events", h.events)
	h.mux.HandleFunc("GET /nodes", h.nodes)
	h.mux.HandleFunc("GET /reach", h.reach)
	h.mux.HandleFunc("GET /reach/{from}/{to}", h.reach)
	h.mux.HandleFunc("GET /reach/{from}/{to}/pods", h.reach)
	for _, path := range []string{"/explain", "/policies", "/policies/{kind}/{name}", "/policies/{kind}/{namespace}/{name}", "/inexact"} {
		h.mux.HandleFunc("GET "+path, h.asking)
	}
	h.mux.Handle("GET /static/", http.FileServerFS(page.Files()))
	h.mux.HandleFunc("GET /live.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "live.js") })
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page.Secure(w.Header())
	if page.Foreign(r) {
		http.Error(w, "another site requests this page: open it in a window of its own", http.StatusForbidden)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// called returns the context of a call with the token of the browser.
func called(r *http.Request) context.Context {
	return metadata.NewIncomingContext(r.Context(), metadata.MD{"authorization": r.Header.Values("Authorization")})
}

var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// request reads the parameters of a page: the namespace of one end of the flows, or none.
func request(r *http.Request) (namespace string, _ *observer.GetFlowsRequest, err error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", nil, status.Errorf(codes.InvalidArgument, "the address of the page is not valid behind the question mark: %v", err)
	}
	for name, list := range values {
		if name != "namespace" || len(list) != 1 {
			return "", nil, status.Errorf(codes.InvalidArgument, "parameter %q: this page has namespace, once", name[:min(40, len(name))])
		}
	}
	dropped := []flow.Verdict{flow.Verdict_DROPPED}
	namespace = strings.TrimSpace(values.Get("namespace"))
	if namespace == "" {
		return "", &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{Verdict: dropped}}}, nil
	}
	if !namespaceName.MatchString(namespace) {
		return "", nil, status.Error(codes.InvalidArgument, "namespace: give the name of a namespace: lower case letters, digits and -")
	}
	ends := []string{namespace + "/"}
	return namespace, &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{SourcePod: ends, Verdict: dropped}, {DestinationPod: ends, Verdict: dropped}}}, nil
}

// document is what a page renders.
type document struct {
	Title, Path string
	Links       []page.Link
	// Namespace is that of the flows; Problem says why there are none.
	Namespace, Problem string
	Rows               []row
	Missing            []string // nodes without an answer
	Partial            []*partial
	// Lost is the number of flows, of any verdict, that were lost while those of the page came.
	Lost uint64
	At   time.Time
}

// partial are nodes that report no flows or not all, for one reason.
type partial struct {
	Why   string
	Nodes []string
}

// maxPartial bounds the reasons that a page shows, maxWhy each in bytes. Agents choose them.
const maxPartial, maxWhy = 10, 300

// addPartial adds nodes that do not report all flows.
func (d *document) addPartial(s *hubblerelay.NodeStatusEvent) {
	of := func(why string) *partial {
		i := slices.IndexFunc(d.Partial, func(p *partial) bool { return p.Why == why })
		if i < 0 {
			return nil
		}
		return d.Partial[i]
	}
	why := clip(s.GetMessage())
	if of(why) == nil && len(d.Partial) >= maxPartial {
		why = "other reasons"
	}
	if of(why) == nil {
		d.Partial = append(d.Partial, &partial{Why: why})
	}
	p := of(why)
	p.Nodes = append(p.Nodes, s.GetNodeNames()...)
}

// clip shortens a text of an agent.
func clip(text string) string { return strings.ToValidUTF8(text[:min(maxWhy, len(text))], "") }

// denied shows the newest kept flows that were denied.
func (h *Handler) denied(w http.ResponseWriter, r *http.Request) {
	d := &document{Title: "Denied flows", Path: "/"}
	var q *observer.GetFlowsRequest
	var err error
	if d.Namespace, q, err = request(r); err == nil {
		q.Number = kept
		err = h.relay.GetFlows(q, stream{ctx: called(r), send: func(m *observer.GetFlowsResponse) error {
			if f := m.GetFlow(); f != nil {
				d.Rows = append(d.Rows, newRow(m))
			}
			d.Lost += m.GetLostEvents().GetNumEventsLost()
			switch s := m.GetNodeStatus(); s.GetStateChange() {
			case hubblerelay.NodeState_NODE_UNAVAILABLE:
				d.Missing = append(d.Missing, s.GetNodeNames()...)
			case hubblerelay.NodeState_NODE_ERROR:
				d.addPartial(s)
			}
			return nil
		}})
	}
	slices.Reverse(d.Rows) // the newest first
	h.render(w, d, err)
}

// statusOf is the HTTP status of a call of the relay.
func statusOf(err error) int {
	switch status.Code(err) {
	case codes.OK:
		return http.StatusOK
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// render writes a page, or the reason why there is none.
func (h *Handler) render(w http.ResponseWriter, d *document, err error) {
	code := statusOf(err)
	if err != nil {
		d.Rows, d.Problem = nil, status.Convert(err).Message()
	}
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="isthmus: any name, and a token of the cluster as password", charset="UTF-8"`)
	}
	d.Links, d.At = links(), time.Now().UTC()
	var b bytes.Buffer
	if err := h.templates.ExecuteTemplate(&b, "document", d); err != nil {
		http.Error(w, "render the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // the client may have gone
}
