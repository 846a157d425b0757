// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

// TestMissingNodes checks that clients and the log learn why a node does not answer.
func TestMissingNodes(t *testing.T) {
	dir := t.TempDir()
	a := newAgent(t, dir, "a", 100)
	nodes := addresses(a)
	nodes["gone"], nodes["deaf"] = "unix://"+filepath.Join(dir, "gone"), ""
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(nodes); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := New(pool, nil, "1", slog.New(slog.NewTextHandler(&log, nil)))
	var message string
	err := r.GetFlows(&observer.GetFlowsRequest{}, local{ctx: t.Context(), send: func(m *observer.GetFlowsResponse) {
		if s := m.GetNodeStatus(); s.GetStateChange() == relay.NodeState_NODE_UNAVAILABLE {
			message += s.GetMessage()
		}
	}})
	if err != nil || !strings.Contains(message, "deaf: the agent serves no port: start it with --hubble-listen; gone: ") || !strings.Contains(message, "no such file") ||
		strings.Contains(message, "rpc error") {
		t.Errorf("message %q, %v", message, err)
	}
	// logged runs a check, and returns what it logs.
	logged := func() string {
		log.Reset()
		r.check(t.Context())
		return log.String()
	}
	if text := logged(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "node=deaf") || !strings.Contains(text, "node=gone") || !strings.Contains(text, "no such file") {
		t.Errorf("first check:\n%s", text)
	}
	if text := logged(); text != "" {
		t.Errorf("without a change:\n%s", text)
	}
	a.stop()
	if text := logged(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "does not answer") || !strings.Contains(text, "node=a address=unix://") {
		t.Errorf("a node stopped:\n%s", text)
	}
	a.start()
	for answers := 0; answers == 0; {
		log.Reset()
		answers = r.check(t.Context())
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "answers again") {
		t.Errorf("a node is back:\n%s", text)
	}
}

// TestOpenMetrics reads the metrics as Prometheus does.
func TestOpenMetrics(t *testing.T) {
	r := New(NewPool(nil, quietLog), nil, "1", quietLog)
	q := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	q.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	a := httptest.NewRecorder()
	r.Handler().ServeHTTP(a, q)
	if kind := a.Header().Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text") || !strings.HasSuffix(a.Body.String(), "# EOF\n") ||
		!strings.Contains(a.Body.String(), "isthmus_relay_flows_lost_total 0.0\n") {
		t.Errorf("%s:\n%s", kind, a.Body)
	}
}
