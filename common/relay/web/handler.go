// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
	"github.com/isthmus-net/isthmus/common/relay/denied"
)

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
	cluster Cluster
	pages   *page.Handler
	mux     *http.ServeMux
}

// New returns a Handler of a relay. Both arguments are the relay.
func New(r Relay, c Cluster) (*Handler, error) {
	pages, err := newPages(r, c)
	if err != nil {
		return nil, err
	}
	h := &Handler{cluster: c, pages: pages, mux: http.NewServeMux()}
	h.mux.HandleFunc("GET /{$}", first)
	h.mux.HandleFunc("GET /flows", h.flows)
	h.mux.HandleFunc("GET /nodes", h.nodes)
	h.mux.HandleFunc("GET /reach", h.reach)
	h.mux.HandleFunc("GET /reach/{from}/{to}", h.reach)
	h.mux.HandleFunc("GET /reach/{from}/{to}/pods", h.reach)
	for _, path := range []string{"/explain", "/policies", "/policies/{kind}/{name}", "/policies/{kind}/{namespace}/{name}", "/inexact"} {
		h.mux.HandleFunc("GET "+path, h.asking)
	}
	// The relay itself authenticates the client of new flows. Static files need no rights.
	h.mux.HandleFunc("GET /flows/events", func(w http.ResponseWriter, r *http.Request) { h.pages.ServeHTTP(w, r.WithContext(called(r))) })
	h.mux.Handle("GET /static/", pages)
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

// first leads to the first page.
func first(w http.ResponseWriter, r *http.Request) {
	to := *r.URL
	to.Path = links()[0].Path
	http.Redirect(w, r, to.RequestURI(), http.StatusFound)
}

// called returns the context of a call with the token of the browser.
func called(r *http.Request) context.Context {
	return metadata.NewIncomingContext(r.Context(), metadata.MD{"authorization": r.Header.Values("Authorization")})
}

// stream is the client of a call inside of this process.
type stream struct {
	grpc.ServerStreamingServer[observer.GetFlowsResponse]
	ctx  context.Context
	send func(page.FlowEvent) error
}

// Context implements grpc.ServerStream.
func (s stream) Context() context.Context { return s.ctx }

// Send implements grpc.ServerStreamingServer.
func (s stream) Send(m *observer.GetFlowsResponse) error { return s.send(denied.Event(m)) }

// flows shows denied flows, whatever objects are known.
func (h *Handler) flows(w http.ResponseWriter, r *http.Request) {
	ctx := called(r)
	if err := h.cluster.AllowEnds(ctx, nil); err != nil {
		h.refuse(w, r, err)
		return
	}
	h.pages.ServeHTTP(w, r.WithContext(ctx))
}
