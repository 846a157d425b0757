// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
)

// newPages returns the pages about a cluster, which only reach and explain call.
func newPages(c Cluster) (*page.Handler, error) {
	return page.New(context.Background(), page.Config{
		Cluster: c.Objects,
		Links: []page.Link{{Path: "/", Name: "Denied flows"}, {Path: "/reach", Name: "Who reaches whom"}, {Path: "/explain", Name: "Explain"},
			{Path: "/nodes", Name: "Nodes"}},
		Notes: c.Notes,
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

// explain explains flows. The page asks for the rights to both ends.
func (h *Handler) explain(w http.ResponseWriter, r *http.Request) {
	h.shown(w, r, &document{Title: "Explain a flow", Path: "/explain"}, func(ctx context.Context) error { return h.cluster.AllowEnds(ctx, nil) })
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
