// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
)

// prometheus is a running server.
type prometheus struct{ address string }

// agents returns the targets of the agents.
func agents(t *testing.T, c *cluster.Cluster) (targets []string) {
	for _, n := range c.Nodes {
		targets = append(targets, target(t, n.NS, cluster.HTTP))
	}
	return targets
}

// target returns the address of a proxy for an address in a network namespace, where Prometheus does not run.
func target(t *testing.T, ns *netns.NS, address string) string {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: address}) },
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = ns.Do(func() error { conn, err = new(net.Dialer).DialContext(ctx, network, address); return err })
			return conn, err
		}},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // tests stop what is behind it
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// startPrometheus starts a server that scrapes some jobs once a second, and returns when it has scraped all of their
// targets.
func startPrometheus(ctx context.Context, t *testing.T, rules string, jobs map[string][]string) prometheus {
	t.Helper()
	program := tool(t, "prometheus")
	rules, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	var scraped []any
	targets := 0
	for name, of := range jobs {
		scraped = append(scraped, map[string]any{"job_name": name, "static_configs": []any{map[string]any{"targets": of}}})
		targets += len(of)
	}
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{ // JSON is YAML
		"global":         map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": scraped,
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	output, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		output.Close()
		if t.Failed() {
			text, _ := os.ReadFile(output.Name())
			t.Logf("prometheus:\n%s", text)
		}
	})
	p := prometheus{address}
	for {
		n, err := p.ask(ctx, "count(up == 1) == "+strconv.Itoa(targets))
		if err == nil && n == 1 {
			return p
		}
		if ctx.Err() != nil {
			t.Fatalf("prometheus scrapes %d of %d targets: %v", n, targets, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// ask returns the number of series of a query that have a value. A quantile of nothing is not a value.
func (p prometheus) ask(ctx context.Context, expr string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	n := 0
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
			n++
		}
	}
	return n, nil
}
