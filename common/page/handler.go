// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed static
var files embed.FS

//go:embed templates.html
var templates string

// maxBusy bounds the pages that are computed at a time.
const maxBusy = 8

// Handler serves the pages. It is safe for concurrent use.
type Handler struct {
	config    Config
	ctx       context.Context
	mux       *http.ServeMux
	templates *template.Template
	busy      chan struct{}
	inexact   inexact

	mutex sync.Mutex // of view
	view  *View
}

// New returns a Handler. The context ends its background work.
func New(ctx context.Context, c Config) (*Handler, error) {
	if c.Links == nil {
		c.Links = allPages()
	}
	t, err := parseTemplates(c.Links)
	if err != nil {
		return nil, err
	}
	h := &Handler{config: c, ctx: ctx, mux: http.NewServeMux(), templates: t, busy: make(chan struct{}, maxBusy)}
	h.mux.Handle("GET "+c.Base+"/static/", http.StripPrefix(c.Base, http.FileServerFS(files)))
	for path, f := range map[string]func(*http.Request) (*document, error){
		"/{$}": h.overview, "/reach": h.namespaces, "/reach/{from}/{to}": h.workloads, "/reach/{from}/{to}/pods": h.pods,
		"/explain": h.explain, "/policies": h.policies, "/policies/{kind}/{name}": h.policy, "/policies/{kind}/{namespace}/{name}": h.policy,
		"/nodes": h.nodes, "/inexact": h.notExact,
	} {
		h.mux.Handle("GET "+c.Base+path, h.serve(f))
	}
	// Flows wait for nodes, so that they take no place of pages that are computed.
	h.mux.HandleFunc("GET "+c.Base+"/flows", func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, h.flows) })
	h.mux.HandleFunc("GET "+c.Base+"/flows/events", h.flowEvents)
	return h, nil
}

// problem is an error with its HTTP status.
type problem struct {
	status int
	error
}

// Failed returns an error for a page with an HTTP status.
func Failed(status int, err error) error { return &problem{status, err} }

// refused reports whether Failed made an error.
func refused(err error) (*problem, bool) {
	var p *problem
	return p, errors.As(err, &p)
}

// notFound and badRequest return errors that the client made.
func notFound(err error) error   { return &problem{http.StatusNotFound, err} }
func badRequest(err error) error { return &problem{http.StatusBadRequest, err} }

// ServeHTTP implements http.Handler. It refuses requests that another site makes a browser send.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	Secure(w.Header())
	switch {
	case !h.hosts(r.Host):
		http.Error(w, fmt.Sprintf("Host %q is not served: use the address that was printed at the start", shorten(r.Host, 80)), http.StatusMisdirectedRequest)
	case Foreign(r):
		http.Error(w, "another site requests this page: open it in a window of its own", http.StatusForbidden)
	default:
		h.mux.ServeHTTP(w, r)
	}
}

// Foreign reports whether another site makes the browser send a request, other than by a link.
func Foreign(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}

// Files returns the style sheet and the icon, in the directory static.
func Files() fs.FS { return files }

// Secure sets the headers of every answer of a page.
func Secure(header http.Header) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
		"X-Frame-Options":              "DENY",
		"X-Content-Type-Options":       "nosniff",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		header.Set(name, value)
	}
}

// hosts reports whether a Host header names this server. A name of another site that resolves to this machine does not.
func (h *Handler) hosts(host string) bool {
	if len(h.config.Hosts) == 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return slices.Contains(h.config.Hosts, strings.ToLower(strings.Trim(host, "[]")))
}

// document is what a page renders.
type document struct {
	// Template is the name of its template, and Title its title.
	Template, Title string
	// Base precedes addresses; Path is that of the page without Base.
	Base, Path string
	Cluster    *Cluster
	// Notes are remarks of Config.Notes.
	Notes []string
	// Status is the HTTP status. Refresh, if set, is the number of seconds after which a browser loads the page again.
	Status, Refresh int
	// Body is the value of the template.
	Body any
	// Now is when a page was made that is not about the cluster; such a page has no Cluster. Live is true if it has new flows.
	Now  time.Time
	Live bool
}

// serve returns the handler of a page that is computed.
func (h *Handler) serve(page func(*http.Request) (*document, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.busy <- struct{}{}:
			defer func() { <-h.busy }()
		case <-r.Context().Done():
			return
		}
		h.answer(w, r, page)
	})
}

// answer serves a page.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, page func(*http.Request) (*document, error)) {
	d, err := page(r)
	if err != nil {
		d = failed(err)
	}
	if d.Now.IsZero() {
		d.Cluster = h.config.Cluster()
		if h.config.Notes != nil && d.Template != "failed" {
			d.Notes = h.config.Notes(r.Context())
		}
	}
	h.write(w, r, d)
}

// write writes a page.
func (h *Handler) write(w http.ResponseWriter, r *http.Request, d *document) {
	d.Base, d.Path = h.config.Base, strings.TrimPrefix(r.URL.Path, h.config.Base)
	var b bytes.Buffer
	if err := h.templates.ExecuteTemplate(&b, "document", d); err != nil {
		http.Error(w, "render the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if d.Refresh > 0 {
		w.Header().Set("Refresh", fmt.Sprint(d.Refresh))
	}
	w.WriteHeader(max(d.Status, http.StatusOK))
	_, _ = w.Write(b.Bytes()) // the client may have gone
}

// Refuse serves the page of an error, which shows nothing of the cluster.
func (h *Handler) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	d := failed(err)
	d.Now = time.Now()
	h.write(w, r, d)
}

// failed is the page of an error.
func failed(err error) *document {
	return &document{Template: "failed", Title: "No answer", Status: statusOf(err), Body: err.Error()}
}

// statusOf is the HTTP status of an error.
func statusOf(err error) int {
	if p, ok := refused(err); ok {
		return p.status
	}
	return http.StatusInternalServerError
}

// current returns the View of the newest cluster. Requests wait while it is prepared.
func (h *Handler) current() *View {
	c := h.config.Cluster()
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.view == nil || h.view.cluster != c {
		h.view = NewView(c)
	}
	return h.view
}

// Prepare prepares the newest cluster, so that the first page need not wait for it.
func (h *Handler) Prepare() { h.current() }
