// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/isthmus-net/isthmus/common/httpd"
)

// Ready reports whether a State of this agent is in force.
func (a *Agent) Ready() bool { return a.view.Load().ready }

// Handler serves /metrics, /healthz and /readyz. /healthz returns 200 while the loop responds, /readyz when
// a State of this agent is in force. It needs no authentication and exposes no secrets. More than
// httpd.Scrapes concurrent reads of /metrics get 503.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{Registry: a.metrics,
		MaxRequestsInFlight: httpd.Scrapes, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if a.stalled() {
			http.Error(w, fmt.Sprintf("the agent's loop has not responded for %s", a.cfg.Stall), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		v := a.view.Load()
		if v.ready {
			fmt.Fprintln(w, "ok")
			return
		}
		why := v.unable
		if why == "" {
			why = "the agent is starting"
		}
		http.Error(w, why, http.StatusServiceUnavailable)
	})
	return mux
}
