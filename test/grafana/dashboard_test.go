// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

const dashboardFile = "../../deploy/helm/isthmus/files/dashboard.json"

// read returns the schema and the dashboard of the chart.
func read(t *testing.T) (*schema, string) {
	t.Helper()
	s, err := newSchema()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	return s, string(raw)
}

// TestDashboard checks the dashboard of the chart.
func TestDashboard(t *testing.T) {
	s, raw := read(t)
	if err := s.check([]byte(raw)); err != nil {
		t.Errorf("%s differs from Grafana's schema:\n%v", dashboardFile, err)
	}
}

// planted are mistakes: a text of the dashboard, what replaces its first place, and the error.
var planted = [][3]string{
	{`"wideLayout": true`, `"wideLayout": "yes"`, "options.wideLayout: json: cannot unmarshal string into Go value of type bool"},
	{`"wideLayout": true`, `"wideLayout": true, "wideLayot": true`, "unexpected field 'wideLayot'"},
	{`"wideLayout": true,`, ``, "options.wideLayout: required field is missing"},
	{`"colorMode": "value"`, `"colorMode": "rainbow"`, `Options.ColorMode is "rainbow": want one of value, background`},
	{`"mode": "single"`, `"mode": "all"`, `Options.Tooltip.Mode is "all"`},
	{`"unit": "none"`, `"unit": 3`, "fieldConfig: json: cannot unmarshal number"},
	{`"unit": "none"`, `"unit": "none", "units": "s"`, "unexpected field 'units'"},
	{`"unit": "pps"`, `"unit": "pps", "custom": {"lineWidht": 2}`, "unexpected field 'lineWidht'"},
	{`"unit": "pps"`, `"unit": "pps", "custom": {"lineWidth": "2"}`, "cannot unmarshal string into Go value of type float64"},
	{`"unit": "pps"`, `"unit": "pps", "custom": {"drawStyle": "dots"}`, `is "dots": want one of line, bars, points`},
	{`"overrides": []`, `"overrides": {}`, "overrides"},
	{`"refId": "A"`, `"refId": "A", "exprs": "up"`, "unexpected field 'exprs'"},
	{`"refId": "A"`, `"refId": "A", "instant": 1`, "targets[0].instant: json: cannot unmarshal number"},
	{`"type": "stat"`, `"type": "stats"`, `the schema has no panel of type "stats"`},
	{`"w": 24`, `"w": 25`, "must be <= 24"},
	{`"schemaVersion": 39`, `"schemaVersion": "39"`, "schemaVersion: json: cannot unmarshal string"},
	{`"tags"`, `"tagz"`, "unexpected field 'tagz'"},
	{`"multi": true`, `"multi": 1`, "multi: json: cannot unmarshal number"},
	{`"type": "query"`, `"type": "quarry"`, `is "quarry": want one of query`},
	{`"refresh": 2`, `"refresh": 9`, `is "9": want one of 0, 1, 2`},
	{`"collapsed": false`, `"collapsed": false, "colapsed": false`, "unexpected field 'colapsed'"},
}

// TestPlanted plants mistakes in the dashboard. The check must find each.
func TestPlanted(t *testing.T) {
	s, raw := read(t)
	for _, p := range planted {
		bad := strings.Replace(raw, p[0], p[1], 1)
		if bad == raw || !json.Valid([]byte(bad)) {
			t.Errorf("%s: the dashboard has no such text, or is no JSON with the mistake", p[0])
			continue
		}
		if err := s.check([]byte(bad)); err == nil || !strings.Contains(err.Error(), p[2]) {
			t.Errorf("%s: got %v, want %s", p[1], err, p[2])
		}
	}
	fmt.Printf("dashboard: %d planted mistakes\n", len(planted))
}
