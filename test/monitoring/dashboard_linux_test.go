// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
)

const dashboardFile = "../../deploy/helm/isthmus/files/dashboard.json"

// panel is a panel of a dashboard of Grafana, as far as this test reads it.
type panel struct {
	ID          int
	Type, Title string
	Targets     []struct{ Expr string }
	Datasource  struct{ Type, UID string }
	GridPos     struct{ H, W, X, Y int }
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type string }
	}
}

// readDashboard returns the dashboard. Its form is that of Grafana: titles, units, unique numbers, and places
// beside each other.
func readDashboard(t *testing.T) dashboard {
	t.Helper()
	raw, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || len(d.Panels) < 24 {
		t.Errorf("uid %q, title %q, schema %d, %d panels", d.UID, d.Title, d.SchemaVersion, len(d.Panels))
	}
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] {
			t.Errorf("panel %d %q: no title, or its number is taken", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && (len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" ||
			!slices.Contains([]string{"timeseries", "stat", "table"}, p.Type)) {
			t.Errorf("panel %q: type %q, unit %q, %d expressions", p.Title, p.Type, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q is on %q, or beyond the right edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
	return d
}

func TestDashboardForm(t *testing.T) { readDashboard(t) }

const manifests = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: test, labels: {app: server}}
spec: {containers: [{name: main, ports: [{name: echo, containerPort: 7000, protocol: TCP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: windows, namespace: test, labels: {app: client}}
spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: echo}]}]
`

// commands are what the nodes run.
var commands = clustertest.Commands{More: build}

func TestMain(m *testing.M) { os.Exit(leftOut(commands.Main(m))) }

// TestDashboard runs a Linux and a Windows node, has Prometheus scrape both while pods are attached and a policy
// changes, and asks it for each expression of the dashboard and each recording rule.
func TestDashboard(t *testing.T) {
	tool(t, "prometheus")
	if os.Getuid() != 0 {
		t.Skip("needs root: make test-alerts runs it")
	}
	d := readDashboard(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	c := commands.Start(t, manifests, cluster.Config{Linux: 1, Windows: 1})
	server := startPrometheus(ctx, t, rulesFile, map[string][]string{"isthmus-agent": agents(t, c)})
	time.Sleep(3 * time.Second) // some scrapes before the first pod
	clustertest.Attach(t, c)
	pending := make(map[string]string) // by title
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$job", ".+", "$instance", ".+").Replace(target.Expr)
			pending[fmt.Sprintf("%s, %d", p.Title, i)] = expr
		}
	}
	for _, name := range []string{"isthmus:denied_flows:rate5m", "isthmus:time_to_enforce_seconds:p99_15m", "isthmus:map_pressure:ratio"} {
		pending[name] = name
	}
	asked := len(pending)
	for deadline := time.Now().Add(90 * time.Second); len(pending) > 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
		for title, expr := range pending {
			n, err := server.ask(ctx, expr)
			if err != nil {
				t.Fatalf("%s: %v", title, err)
			}
			if n > 0 {
				delete(pending, title)
			}
		}
	}
	for title, expr := range pending {
		t.Errorf("%s has no data: %s", title, expr)
	}
	// The series of Go and of the process are not counted, nor those of the recording rules. Windows has a histogram
	// for each kind of call to HNS.
	if over, err := server.ask(ctx, `count by (instance) ({__name__=~"isthmus_.*"}) > 400`); err != nil || over > 0 {
		t.Errorf("%d nodes have more than 400 series, %v", over, err)
	}
	fmt.Printf("dashboard: %d panels, %d expressions, %d empty\n", len(d.Panels), asked, len(pending))
}
