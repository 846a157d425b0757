// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
)

// links are the pages in the order of the navigation.
func links() []page.Link {
	return []page.Link{{Path: "/", Name: "Denied flows"}, {Path: "/reach", Name: "Who reaches whom"}, {Path: "/explain", Name: "Explain"}, {Path: "/policies", Name: "Policies"},
		{Path: "/nodes", Name: "Nodes"}, {Path: "/inexact", Name: "Not exact"}}
}

// newPages returns the pages about a cluster, which only the methods below call.
func newPages(c Cluster) (*page.Handler, error) {
	none := &page.Cluster{Snapshot: model.MakeSnapshot(nil, nil, nil, nil), Source: "No objects", At: time.Now(), Stale: "no agent gives the objects of the cluster"}
	return page.New(context.Background(), page.Config{
		Cluster: func() *page.Cluster { return cmp.Or(c.Objects(), none) },
		Links:   links(),
		Notes:   c.Notes,
		Agents: func(ctx context.Context) (map[string]page.Agent, error) {
			all, err := c.Agents(ctx)
			return all, failed(err)
		},
		Usage: func(ctx context.Context, namespace string) (*usage.Total, error) {
			t, err := c.Usage(ctx, namespace)
			return t, failed(err)
		},
		AllowNamespace: func(ctx context.Context, namespace string) error {
			if namespace == "" {
				return failed(c.AllowNamespaces(ctx))
			}
			return failed(c.AllowNamespaces(ctx, namespace))
		},
		Allow: func(ctx context.Context, s *model.Snapshot, from, to string) error {
			return failed(c.AllowEnds(ctx, s, from, to))
		},
		Explain: func(ctx context.Context, shown *page.Cluster, f model.Flow) (*explain.Report, error) {
			x, err := c.Explain(ctx, shown.Snapshot, f)
			return x, failed(err)
		},
	})
}

// failed turns the error of a call into that of a page.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return page.Failed(statusOf(err), errors.New(status.Convert(err).Message()))
}

// reach shows who reaches whom: all namespaces, or those of the path, to a client who may read the flows there.
func (h *Handler) reach(w http.ResponseWriter, r *http.Request) {
	var namespaces []string
	for _, name := range []string{r.PathValue("from"), r.PathValue("to")} {
		if name == "" {
			continue
		}
		if !namespaceName.MatchString(name) {
			h.render(w, &document{Title: "Who reaches whom", Path: "/reach"}, status.Error(codes.InvalidArgument, "the path names two namespaces: lower case letters, digits and -"))
			return
		}
		namespaces = append(namespaces, name)
	}
	h.shown(w, r, &document{Title: "Who reaches whom", Path: "/reach"}, func(ctx context.Context) error { return h.cluster.AllowNamespaces(ctx, namespaces...) })
}

// asking serves a page that asks for the rights to what it shows.
func (h *Handler) asking(w http.ResponseWriter, r *http.Request) {
	h.shown(w, r, &document{Title: "No answer", Path: r.URL.Path}, func(ctx context.Context) error { return h.cluster.AllowEnds(ctx, nil) })
}

// nodes shows nodes, also if no agent answers.
func (h *Handler) nodes(w http.ResponseWriter, r *http.Request) {
	ctx := called(r)
	if err := h.cluster.AllowNodes(ctx); err != nil {
		h.render(w, &document{Title: "Nodes", Path: "/nodes"}, err)
		return
	}
	_ = h.cluster.Refresh(ctx) // the page says what is not up to date
	h.pages.ServeHTTP(w, r.WithContext(ctx))
}

// shown serves a page about the cluster to a client who may read it. Otherwise the document says why not.
func (h *Handler) shown(w http.ResponseWriter, r *http.Request, d *document, allow func(context.Context) error) {
	ctx := called(r)
	err := allow(ctx)
	if err == nil {
		err = h.cluster.Refresh(ctx)
	}
	if err != nil {
		h.render(w, d, err)
		return
	}
	h.pages.ServeHTTP(w, r.WithContext(ctx))
}
