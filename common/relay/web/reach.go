// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
	"github.com/isthmus-net/isthmus/common/relay/denied"
)

// links are the pages in the order of the navigation.
func links() []page.Link {
	return []page.Link{{Path: "/flows", Name: "Denied flows"}, {Path: "/reach", Name: "Who reaches whom"},
		{Path: "/explain", Name: "Explain"}, {Path: "/policies", Name: "Policies"},
		{Path: "/nodes", Name: "Nodes"}, {Path: "/inexact", Name: "Not exact"}}
}

// newPages returns the pages, whose requests only a Handler makes.
func newPages(r Relay, c Cluster) (*page.Handler, error) {
	none := &page.Cluster{Snapshot: model.MakeSnapshot(nil, nil, nil, nil), Source: "No objects", At: time.Now(),
		Stale: "no agent gives the objects of the cluster"}
	return page.New(context.Background(), page.Config{
		Cluster: func() *page.Cluster { return cmp.Or(c.Objects(), none) },
		Links:   links(),
		Notes:   c.Notes,
		Flows: func(ctx context.Context, q page.FlowQuery, send func(page.FlowEvent) error) error {
			return denied.Failed(r.GetFlows(denied.Request(q), stream{ctx: ctx, send: send}))
		},
		Agents: func(ctx context.Context) (map[string]page.Agent, error) {
			all, err := c.Agents(ctx)
			return all, denied.Failed(err)
		},
		Usage: func(ctx context.Context, namespace string) (*usage.Total, error) {
			t, err := c.Usage(ctx, namespace)
			return t, denied.Failed(err)
		},
		AllowNamespace: func(ctx context.Context, namespace string) error {
			if namespace == "" {
				return denied.Failed(c.AllowNamespaces(ctx))
			}
			return denied.Failed(c.AllowNamespaces(ctx, namespace))
		},
		Allow: func(ctx context.Context, s *model.Snapshot, from, to string) error {
			return denied.Failed(c.AllowEnds(ctx, s, from, to))
		},
		Explain: func(ctx context.Context, shown *page.Cluster, f model.Flow) (*explain.Report, error) {
			x, err := c.Explain(ctx, shown.Snapshot, f)
			return x, denied.Failed(err)
		},
	})
}

var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// reach shows who reaches whom: all namespaces, or those of the path, to a client who may read the flows there.
func (h *Handler) reach(w http.ResponseWriter, r *http.Request) {
	var namespaces []string
	for _, name := range []string{r.PathValue("from"), r.PathValue("to")} {
		if name == "" {
			continue
		}
		if !namespaceName.MatchString(name) {
			h.refuse(w, r, status.Error(codes.InvalidArgument, "the path names two namespaces: lower case letters, digits and -"))
			return
		}
		namespaces = append(namespaces, name)
	}
	h.shown(w, r, func(ctx context.Context) error { return h.cluster.AllowNamespaces(ctx, namespaces...) })
}

// asking serves a page that asks for the rights to what it shows.
func (h *Handler) asking(w http.ResponseWriter, r *http.Request) {
	h.shown(w, r, func(ctx context.Context) error { return h.cluster.AllowEnds(ctx, nil) })
}

// nodes shows nodes, also if no agent answers.
func (h *Handler) nodes(w http.ResponseWriter, r *http.Request) {
	ctx := called(r)
	if err := h.cluster.AllowNodes(ctx); err != nil {
		h.refuse(w, r, err)
		return
	}
	_ = h.cluster.Refresh(ctx) // the page says what is not up to date
	h.pages.ServeHTTP(w, r.WithContext(ctx))
}

// shown serves a page about the cluster to a client who may read it.
func (h *Handler) shown(w http.ResponseWriter, r *http.Request, allow func(context.Context) error) {
	ctx := called(r)
	err := allow(ctx)
	if err == nil {
		err = h.cluster.Refresh(ctx)
	}
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	h.pages.ServeHTTP(w, r.WithContext(ctx))
}

// refuse serves the page of a call that failed. A browser then asks its user for a token, if that is missing.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if status.Code(err) == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", `Basic realm="isthmus: any name, and a token of the cluster as password", charset="UTF-8"`)
	}
	h.pages.Refuse(w, r, denied.Failed(err))
}
