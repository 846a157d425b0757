// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestExportUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		text string
	}{
		"no file":     {[]string{"--export-aggregate=15s"}, "--export-allow, --export-deny, --export-aggregate: they need --export-file or --otlp-endpoint"},
		"relative":    {[]string{"--export-file=flows"}, `--export-file "flows": give an absolute path, or -`},
		"size":        {[]string{"--export-file=-", "--export-file-max-mb=0"}, "--export-file-max-mb 0: give 1 to 10000"},
		"keep":        {[]string{"--export-file=-", "--export-file-keep=-1"}, "--export-file-keep -1: give 0 to 100"},
		"window":      {[]string{"--export-file=-", "--export-aggregate=1ms"}, "--export-aggregate 1ms: give 1s to 10m0s, or 0"},
		"no JSON":     {[]string{"--export-file=-", "--export-allow=DROPPED"}, `--export-allow: filter "DROPPED"`},
		"field":       {[]string{"--export-file=-", `--export-deny={"verdicts":["DROPPED"]}`}, "--export-deny: filter"},
		"unsupported": {[]string{"--export-file=-", `--export-deny={"source_ip":["x"]}`}, "--export-allow, --export-deny: "},
		"endpoint":    {[]string{"--otlp-endpoint=collector"}, `--otlp-endpoint "collector": give HOST:PORT`},
		"port":        {[]string{"--otlp-endpoint=collector:http"}, `--otlp-endpoint "collector:http": give HOST:PORT`},
		"no endpoint": {[]string{"--otlp-headers-file=/x"}, "they need --otlp-endpoint"},
		"no TLS":      {[]string{"--otlp-endpoint=192.0.2.1:4317", "--otlp-insecure"}, "flows go to other machines over TLS only"},
		"no TLS name": {[]string{"--otlp-endpoint=collector:4317", "--otlp-insecure"}, "flows go to other machines over TLS only"},
		"TLS files":   {[]string{"--otlp-endpoint=[::1]:4317", "--otlp-insecure", "--otlp-ca=/x"}, "have no meaning without TLS"},
		"half a pair": {[]string{"--otlp-endpoint=a:4317", "--otlp-cert=/x"}, "--otlp-cert, --otlp-key: give both or none"},
		"queue":       {[]string{"--otlp-endpoint=a:4317", "--otlp-queue=0"}, "--otlp-queue 0: give 1 to 1048576"},
		"otlp filter": {[]string{"--otlp-endpoint=a:4317", "--export-allow=DROPPED"}, `--export-allow: filter "DROPPED"`},
	} {
		var out, errs bytes.Buffer
		if status := run(t.Context(), append(c.args, "--agents=unix:///a"), &out, &errs); status != 2 || !strings.Contains(errs.String(), c.text) {
			t.Errorf("%s: exit status %d, %q, want 2 with %q", name, status, errs.String(), c.text)
		}
	}
}

// exported is a line of an export.
type exported struct {
	Flow *struct {
		L4 struct {
			TCP struct{ Destination_port int }
		}
		Source    struct{ Namespace string }
		Aggregate struct{ Egress_flow_count int }
	}
	Node_name string
	Time      string
}

// ports reads a file of flows, and returns their ports with the number of flows, in order of lines.
func ports(text string) (all []string, err error) {
	for line := range strings.Lines(text) {
		var x exported
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			return nil, fmt.Errorf("%w: %q", err, line)
		}
		if x.Flow != nil {
			all = append(all, fmt.Sprintf("%d*%d", x.Flow.L4.TCP.Destination_port, max(1, x.Flow.Aggregate.Egress_flow_count)))
		}
	}
	return all, nil
}

// stop ends a process by a signal.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		p.t.Fatalf("%v\n%s", err, p.output.String())
	}
}

func waitForPorts(t *testing.T, file string, want ...string) {
	t.Helper()
	eventually(t, "ports in "+file, func() (bool, string) {
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err.Error()
		}
		got, err := ports(string(text))
		return err == nil && slices.Equal(got, want), fmt.Sprintf("%v, want %v, %v", got, want, err)
	})
}

// TestProcessExports: a relay that is restarted exports each flow once, also those of the time in between.
func TestProcessExports(t *testing.T) {
	authority, api := hubbletest.NewAuthority(t), newAPIServer(t)
	address := freePort(t)
	store := serveFlows(t, authority, address)
	file := filepath.Join(t.TempDir(), "flows.jsonl")
	add := func(ports ...uint16) {
		for _, port := range ports {
			store.Add([]model.FlowEvent{event("web", port)})
		}
	}
	args := []string{"--export-file", file, "--export-deny", `{"destination_port":["22"]}`}
	p := startProcess(t, authority, api, address, args...)
	p.probed(http.StatusOK, "ok")
	eventually(t, "the export follows", func() (bool, string) {
		text, err := os.ReadFile(file)
		return bytes.Contains(text, []byte("NODE_CONNECTED")), fmt.Sprintf("%s %v", text, err)
	})
	eventually(t, "the first flow", func() (bool, string) { // the stream from the agent may begin after the state of its node
		add(1)
		text, err := os.ReadFile(file)
		return err == nil && bytes.Contains(text, []byte(`"destination_port":1}`)), string(text)
	})
	p.stop()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	p = startProcess(t, authority, api, address, args...)
	p.probed(http.StatusOK, "ok")
	eventually(t, "the first flow again", func() (bool, string) {
		add(2)
		text, err := os.ReadFile(file)
		return err == nil && bytes.Contains(text, []byte(`"destination_port":2}`)), string(text)
	})
	add(3, 22, 4)
	text := waitForLast(t, file, "4*1")
	p.stop()
	add(5, 6)
	p = startProcess(t, authority, api, address, args...)
	p.probed(http.StatusOK, "ok")
	want, err := ports(text)
	if err != nil {
		t.Fatal(err)
	}
	waitForPorts(t, file, append(want, "5*1", "6*1")...)
	add(7)
	waitForPorts(t, file, append(want, "5*1", "6*1", "7*1")...)
	p.stop()

	p = startProcess(t, authority, api, address, "--export-file", file, "--export-aggregate=10m")
	p.probed(http.StatusOK, "ok")
	add(8, 9, 8, 8)
	eventually(t, "combined flows", func() (bool, string) {
		_, text := p.get("/metrics")
		return strings.Contains(text, "isthmus_relay_export_flows_total 4\n"), text
	})
	p.stop() // writes what it has combined
	waitForPorts(t, file, append(want, "5*1", "6*1", "7*1", "9*1", "8*3")...)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// waitForLast waits until a file ends with a flow, and returns its text.
func waitForLast(t *testing.T, file, last string) (text string) {
	t.Helper()
	eventually(t, "a line of "+last, func() (bool, string) {
		b, err := os.ReadFile(file)
		if err != nil {
			return false, err.Error()
		}
		text = string(b)
		got, err := ports(text)
		return err == nil && len(got) > 2 && got[len(got)-1] == last, fmt.Sprint(got, err)
	})
	got, _ := ports(text)
	if tail := got[len(got)-2:]; !slices.Equal(tail, []string{"3*1", "4*1"}) {
		t.Errorf("the last flows are %v", tail)
	}
	return text
}

// TestProcessExportsToOutput: lines of flows go to the standard output, and the log does not.
func TestProcessExportsToOutput(t *testing.T) {
	authority, api := hubbletest.NewAuthority(t), newAPIServer(t)
	address := freePort(t)
	store := serveFlows(t, authority, address)
	p := startProcess(t, authority, api, address, "--export-file=-", "--export-allow", `{"verdict":["FORWARDED"]}`)
	p.probed(http.StatusOK, "ok")
	eventually(t, "a flow", func() (bool, string) {
		store.Add([]model.FlowEvent{event("web", 80)})
		_, text := p.get("/metrics")
		return !strings.Contains(text, "isthmus_relay_export_flows_total 0\n"), text
	})
	p.stop()
	flows, log := 0, 0
	for line := range strings.Lines(p.output.String()) {
		if got, err := ports(line); err == nil {
			flows += len(got)
		} else {
			log++
		}
	}
	if flows == 0 || log == 0 {
		t.Errorf("%d flows and %d other lines\n%s", flows, log, p.output.String())
	}
}
