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

// Handler serves /metrics, /healthz (200 while the loop lives) and /readyz (200
// when a State of this agent is in force). It needs no authentication and says
// nothing secret. More than httpd.Scrapes readings of /metrics at a time get 503.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{Registry: a.metrics.registry, MaxRequestsInFlight: httpd.Scrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if a.stalled() {
			http.Error(w, fmt.Sprintf("the loop has given no sign of life for %s", a.cfg.Stall), http.StatusServiceUnavailable)
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
