// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

// The log of a running agent changes its level, and says so at every level.
func TestLogLevel(t *testing.T) {
	n := newNode(t)
	run := func(want int, args ...string) (string, string) {
		t.Helper()
		status, out, errs := ctl(append(args, "--socket", n.socket)...)
		if status != want {
			t.Fatalf("%q: status %d, want %d: %s%s", args, status, want, out, errs)
		}
		return out, errs
	}
	if out, _ := run(0, "log-level"); out != "info\n" {
		t.Errorf("level %q, want info", out)
	}
	n.logger.Debug("hidden")
	if out, _ := run(0, "log-level", "debug"); out != "debug until the agent restarts, then info\n" {
		t.Errorf("answer %q", out)
	}
	n.logger.Debug("shown")
	if out, _ := run(0, "log-level", "error", "--for", "10m"); !strings.HasPrefix(out, "error until 2") || !strings.HasSuffix(out, "Z, then info\n") {
		t.Errorf("answer %q", out)
	}
	n.logger.Warn("hidden")
	if log := n.log.String(); strings.Contains(log, "hidden") || !strings.Contains(log, "shown") ||
		!strings.Contains(log, "from=info to=debug") || !strings.Contains(log, "from=debug to=error seconds=600") {
		t.Errorf("log\n%s", log)
	}
	out, _ := run(0, "log-level", "-o", "json")
	var state struct {
		APIVersion, Kind, Level, Configured string
		Until                               string `json:"until_unix_nano"`
	}
	if err := json.Unmarshal([]byte(out), &state); err != nil || state.APIVersion != "isthmusctl.isthmus.dev/v1" || state.Kind != "LogLevel" ||
		state.Level != "error" || state.Configured != "info" || len(state.Until) != 19 {
		t.Errorf("%s: %+v, %v", out, state, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"log-level", "loud"}, `level "loud": give debug, info, warn or error`},
		{[]string{"log-level", "debug", "info"}, "unexpected argument"},
		{[]string{"log-level", "--for", "1m"}, "--for: give a level, too"},
		{[]string{"log-level", "debug", "--for", "0s"}, "--for 0s: give 1s to 24h"},
		{[]string{"log-level", "debug", "--for", "25h"}, "--for 25h0m0s: give 1s to 24h"},
		{[]string{"log-level", "-o", "wide"}, "give text, json or yaml"},
	} {
		if _, errs := run(2, c.args...); !strings.Contains(errs, c.want) {
			t.Errorf("%q: %q, want %q", c.args, errs, c.want)
		}
	}
	if out, _ := run(0, "log-level"); !strings.HasPrefix(out, "error until") {
		t.Errorf("a refused change is in force: %q", out)
	}
}

// An agent that does not allow changes says which isthmusctl fits.
func TestLogLevelOfAnOlderAgent(t *testing.T) {
	n := newNode(t, func(n *node) { n.level = nil })
	status, _, errs := ctl("log-level", "debug", "--socket", n.socket)
	if status != 2 || !strings.Contains(errs, "it does not know this request") {
		t.Errorf("status %d: %s", status, errs)
	}
}

// Every form for programs has a version, counters are numbers, and times stay texts.
func TestMessageJSON(t *testing.T) {
	var out bytes.Buffer
	m := &isthmusv1.GetNodeResponse{Node: "123", IngressDenied: 1 << 60, AppliedUnixNano: 1700000000000000001, Problems: []string{"a\n\"node\": \"7\"", "5"}}
	if err := writeMessage(&out, "json", "NodeStatus", m); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  \"apiVersion\": \"isthmusctl.isthmus.dev/v1\",\n  \"kind\": \"NodeStatus\",\n", `"node": "123"`,
		`"ingress_denied": 1152921504606846976`, `"egress_allowed": 0`, `"applied_unix_nano": "1700000000000000001"`, "\"5\"\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, &out)
		}
	}
	if !json.Valid(out.Bytes()) {
		t.Errorf("not JSON:\n%s", &out)
	}
	inner := &isthmusv1.ListEndpointsResponse{Endpoints: []*isthmusv1.Endpoint{{Bandwidth: &isthmusv1.Bandwidth{EgressRate: 1000}}}}
	out.Reset()
	if err := writeMessage(&out, "yaml", "Endpoints", inner); err != nil || !strings.Contains(out.String(), "egress_rate: 1000\n") || !strings.HasPrefix(out.String(), "apiVersion: ") {
		t.Errorf("%v\n%s", err, &out)
	}
}
