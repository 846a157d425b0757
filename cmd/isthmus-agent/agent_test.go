// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestKillAtEveryStep kills the process at every step of attaching three pods and detaching one, and starts
// it again. It expects no trace of unanswered requests, and every trace of answered ones.
func TestKillAtEveryStep(t *testing.T) {
	t.Parallel()
	stride := 1
	if testing.Short() {
		stride = 6
	}
	kills := 0
	for at := 1; ; at += stride {
		m := newMachine(t, 3)
		answered, killed := m.killed(at)
		m.recovers(at, answered, func() {})
		var want []string
		for _, n := range slices.Sorted(maps.Keys(answered)) {
			want = append(want, fmt.Sprintf("c%d:eth0[]", n))
		}
		if attached, recorded := m.traces(); !slices.Equal(attached, want) || !slices.Equal(recorded, want) {
			t.Fatalf("kill at step %d: attached %v, recorded %v, want %v\n%s", at, attached, recorded, want, m.log.String())
		}
		if !killed {
			break // there are no more steps
		}
		kills++
	}
	t.Logf("kills=%d", kills)
	if kills < 25/stride {
		t.Errorf("only %d kills", kills)
	}
}

func TestStopAndSecondAgent(t *testing.T) {
	m := newMachine(t, 2)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	m.extraArgs = []string{"--http-address", address, "--log-format", "json", "--log-level", "debug"}
	m.start(0)
	if _, err := m.add(0); err != nil {
		t.Fatalf("%v\n%s", err, m.log.String())
	}
	get := func(path string) (status int, body string) {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		all, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(all)
	}
	// Readiness and metrics follow an answer with a short delay.
	deadline := time.Now().Add(time.Minute)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/": 404} {
		status, body := get(path)
		for ; status != want && path == "/readyz" && time.Now().Before(deadline); status, body = get(path) {
			time.Sleep(10 * time.Millisecond)
		}
		if status != want {
			t.Errorf("%s: status %d\n%s", path, status, body)
		}
	}
	for _, body := get("/metrics"); !strings.Contains(body, "isthmus_endpoints 1"); _, body = get("/metrics") {
		if time.Now().After(deadline) {
			t.Fatalf("no endpoint is shown\n%s", body)
		}
		time.Sleep(10 * time.Millisecond)
	}
	inUse := fmt.Sprintf("lock directory %s: process %d (isthmus-agent.t) has held it for more than 100ms: stop that agent, or give this one separate directories", filepath.Join(m.dir, "state", "endpoints"), m.cmd.Process.Pid)
	for flags, want := range map[string]string{
		"--socket=" + filepath.Join(m.dir, "b.sock"):     inUse,
		"--state-dir=" + filepath.Join(m.dir, "state-b"): "another agent listens there",
	} {
		second := &machine{t: t, dir: m.dir, datapath: m.datapath, extraArgs: []string{"--http-address", "", "--lock-timeout", "100ms", flags}}
		second.start(0)
		if err := second.gaveUp(); err == nil || !strings.Contains(second.log.String(), want) {
			t.Errorf("a second agent with %s: %v\n%s", flags, err, second.log.String())
		}
	}
	if err := m.stop(); err != nil {
		t.Errorf("agent ended with %v\n%s", err, m.log.String())
	}
	if _, err := os.Stat(m.socket()); err == nil {
		t.Error("the socket is left")
	}
	if b, err := os.ReadFile(filepath.Join(m.dir, "datapath", "inforce")); err != nil || string(b) != "c0:eth0" {
		t.Errorf("in force after the end: %q, %v", b, err)
	}
}

func TestUsage(t *testing.T) {
	other := "--hns-network=x"
	if runtime.GOOS == "windows" {
		other = "--uplink=x"
	}
	for name, c := range map[string]struct {
		args []string
		text string
	}{
		"unknown flag":    {[]string{"--frobnicate"}, "unknown flag: --frobnicate: see isthmus-agent --help"},
		"argument":        {[]string{"now"}, `unexpected argument "now"`},
		"argument of sub": {[]string{"version", "now"}, `unexpected argument "now"`},
		"two sources":     {[]string{"--manifests", "/a", "--kubeconfig", "/b"}, "--manifests and --kubeconfig exclude each other: give one of them"},
		"no name":         {[]string{"--node-name", ""}, "--node-name is empty"},
		"relative":        {[]string{"--state-dir", "x"}, `--state-dir "x": give an absolute path`},
		"pod range":       {[]string{"--pod-cidr", "10.0.0.0"}, `--pod-cidr "10.0.0.0": give ADDRESS/BITS without host bits`},
		"host bits":       {[]string{"--pod-cidr", "10.0.0.1/24"}, `--pod-cidr "10.0.0.1/24": give ADDRESS/BITS without host bits`},
		"mapped range":    {[]string{"--masquerade-exception", "::ffff:10.0.0.0/104"}, `--masquerade-exception "::ffff:10.0.0.0/104": no packet has such an address: write an IPv4 range`},
		"overlap":         {[]string{"--pod-cidr", "10.0.0.0/24", "--pod-cidr", "10.0.0.0/16", "--manifests", "/nowhere"}, "pod ranges 10.0.0.0/24 and 10.0.0.0/16 overlap"},
		"service range":   {[]string{"--service-cidr", "x"}, `--service-cidr "x": give ADDRESS/BITS`},
		"quarantine":      {[]string{"--quarantine", "-1s"}, "--quarantine -1s: give 0 or more"},
		"lock timeout":    {[]string{"--lock-timeout", "-1s"}, "--lock-timeout -1s: give 0 or more"},
		"quarantine text": {[]string{"--quarantine", "long"}, `--quarantine "long": give a duration with its unit, such as 30s or 5m`},
		"mtu":             {[]string{"--mtu", "100"}, "MTU 100: use a number from 1280 to 65535"},
		"limit":           {[]string{"--limit-port-classes", "1024"}, "--limit-port-classes 1024: give a number from 1 to 1023"},
		"rule counters":   {[]string{"--rule-counters", "1s"}, "--rule-counters"},
		"rule metrics":    {[]string{"--rule-metrics", "10001"}, "--rule-metrics 10001: give 0 to 10000"},
		"no limit":        {[]string{"--limit-tables", "0"}, "--limit-tables 0: give a number from 1 to"},
		"level":           {[]string{"--log-level", "loud"}, `--log-level "loud": give debug, info, warn or error`},
		"format":          {[]string{"--log-format", "xml"}, `--log-format "xml": give text or json`},
		"port":            {[]string{"--vxlan-port", "0"}, "VXLAN port 0: use a number from 1 to 65535"},
		"mode":            {[]string{"--hns-mode", "nat"}, `--hns-mode "nat": give l2bridge or overlay`},
		"sets":            {[]string{"--hns-sets", "some"}, `--hns-sets "some": give auto, on or off`},
		"forwarding":      {[]string{"--forwarding", "past"}, `--forwarding "past": give direct or stack`},
		"from node":       {[]string{"--host-ports-from-node", "some"}, `--host-ports-from-node "some": give all, loopback or none`},
		"reserved port":   {[]string{"--reserved-host-ports", "80,90-80"}, `--reserved-host-ports: "90-80" is not a port or range: use a number from 1 to 65535`},
		"map":             {[]string{"--map-entries", "slots=9"}, `--map-entries: size of map "slots": there is no such map, or its size is fixed: give one of conns4,`},
		"flow events":     {[]string{"--flow-events", "some"}, `--flow-events "some": give all, denied, off`},
		"flow rate":       {[]string{"--flow-event-rate", "0"}, "--flow-event-rate 0: give 1 or more, or --flow-events=off"},
		"flow rate limit": {[]string{"--flow-event-rate", "20000"}, "rate of flow events 20000: give a number from 0 to 10000 a second"},
		"flow burst":      {[]string{"--flow-event-burst", "0"}, "--flow-event-burst 0: give 1 or more"},
		"flow log":        {[]string{"--flow-events=off", "--log-denied-flows"}, "has no effect with --flow-events=off"},
		"map size":        {[]string{"--map-entries", "rows=1"}, "--map-entries: size of map rows: 1 entries: give a number from 3 to"},
		"hubble address":  {[]string{"--hubble-listen", "4244"}, `--hubble-listen "4244": give ADDRESS:PORT, or :PORT for all addresses, as :4244`},
		"hubble TLS":      {[]string{"--hubble-listen", ":4244"}, "--hubble-listen: flows are served over mutual TLS only: give --hubble-cert"},
		"hubble files":    {[]string{"--hubble-ca", "/ca"}, "have no effect without --hubble-listen"},
		"hubble history":  {[]string{"--hubble-history", "1"}, "--hubble-history 1: give 64 to 65536"},
		"other engine":    {[]string{"--other-engine=ignore"}, "--other-engine has no meaning"},
		"devices":         {[]string{"--xdp-devices", ","}, `--xdp-devices ",": give auto, off, or device names`},
		"address":         {[]string{"--http-address", "foo"}, `--http-address "foo": give ADDRESS:PORT, or :PORT for all addresses, or nothing`},
		"name as address": {[]string{"--http-address", "300.1.1.1:99"}, `--http-address "300.1.1.1:99": give ADDRESS:PORT`},
		"port as name":    {[]string{"--http-address", ":http"}, `--http-address ":http": give ADDRESS:PORT`},
		"manifests file":  {[]string{"--manifests", "agent_test.go"}, "--manifests agent_test.go: is a file: give its directory"},
		"name of a node":  {[]string{"--node-name", "A B"}, `--node-name "A B": names of Node objects have lower-case letters`},
		"audit interval":  {[]string{"--audit-interval", "1ms"}, "--audit-interval 1ms: give 1s or more, or 0"},
		"other system":    {[]string{other}, "has no meaning on " + runtime.GOOS},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			e := env{stdout: &out, stderr: &errs, backend: newBackend}
			args := append([]string{"--state-dir=" + filepath.Join(t.TempDir(), "s"), "--node-name=n"}, c.args...)
			if c.args[0] == "version" || c.args[0] == "now" {
				args = c.args
			}
			if status := e.run(t.Context(), args); status != 2 || !strings.Contains(errs.String(), c.text) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
				t.Errorf("exit status %d, %q, %q, want 2 with %q", status, out.String(), errs.String(), c.text)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	var out, errs bytes.Buffer
	if status := (env{stdout: &out, stderr: &errs}).run(t.Context(), []string{"version"}); status != 0 || !strings.HasPrefix(out.String(), "isthmus-agent devel ") {
		t.Errorf("exit status %d, %q, %q", status, out.String(), errs.String())
	}
}

// TestManual checks that the manual pages of the agent have nothing of the machine that writes them.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	if status := (env{stdout: &out, stderr: &errs}).run(t.Context(), []string{"docs", "--dir", dir}); status != 0 {
		t.Fatalf("%d, %s", status, errs.String())
	}
	var all strings.Builder
	for _, name := range []string{"isthmus-agent.8", "isthmus-agent-uninstall.8"} {
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(page)
	}
	if self, err := os.Executable(); err != nil || strings.Contains(all.String(), filepath.Dir(self)) {
		t.Errorf("a page has the directory of the agent, %v:\n%s", err, all.String())
	}
	if !strings.Contains(all.String(), `\fB--node-name\fP="the host name"`) {
		t.Errorf("a page has the name of this host:\n%s", all.String())
	}
}

// TestRuntimeErrors expects status 1 and one line for errors before the agent runs.
func TestRuntimeErrors(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the agent's pipe is for administrators only")
	}
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	failing := func(*options, func(string), *slog.Logger) opener {
		return opener{open: func(context.Context, model.Node) (dataplane.Backend, error) {
			return nil, errors.New("kernel is too old")
		}}
	}
	for name, c := range map[string]struct {
		args []string
		text string
	}{
		"data path":        {nil, `level=ERROR msg="agent has stopped; policy stays in force" error="loop: open data path: kernel is too old"`},
		"state dir":        {[]string{"--state-dir", open}, "can be written by other users"},
		"socket":           {[]string{"--socket", filepath.Join(open, "a.sock")}, "chmod 0700"},
		"http":             {[]string{"--http-address", "192.0.2.1:9470"}, "listen on --http-address"},
		"hubble files":     {[]string{"--hubble-listen=127.0.0.1:4244", "--hubble-cert=/nonexistent", "--hubble-key=/k", "--hubble-ca=/c"}, "--hubble-listen: read certificate files: stat /nonexistent"},
		"kubeconfig":       {[]string{"--kubeconfig", filepath.Join(dir, "none"), "--manifests", ""}, "none"},
		"not in a cluster": {[]string{"--manifests", ""}, "kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			own, err := os.MkdirTemp("", "isthmus")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(own)
			var out, errs bytes.Buffer
			args := append([]string{"--node-name=n", "--manifests", dir, "--state-dir=" + filepath.Join(own, "s"), "--socket=" + filepath.Join(own, "r", "a.sock"),
				"--http-address=", "--log-level=error"}, c.args...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if status := (env{stdout: &out, stderr: &errs, backend: failing}).run(ctx, args); status != 1 || !strings.Contains(errs.String(), c.text) {
				t.Errorf("exit status %d, %q, want 1 with %q", status, errs.String(), c.text)
			}
		})
	}
}

// TestReservedHost expects neither an agent nor an uninstallation while another process holds what one agent of the host may use. It
// does not touch the data path. An agent holds it until it ends.
func TestReservedHost(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the agent's pipe is for administrators only")
	}
	opened, held := 0, 0
	var taken error
	backend := func(*options, func(string), *slog.Logger) opener {
		return opener{
			reserve: func() (io.Closer, error) { held++; return closer(func() { held-- }), taken },
			remove:  func(context.Context) error { opened++; return nil },
			open: func(context.Context, model.Node) (dataplane.Backend, error) {
				opened++
				return nil, fmt.Errorf("held %d times", held)
			},
		}
	}
	run := func(args ...string) (int, string) {
		own, err := os.MkdirTemp("", "isthmus")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(own)
		var errs bytes.Buffer
		args = append(args, "--state-dir="+filepath.Join(own, "s"), "--socket="+filepath.Join(own, "r", "a.sock"), "--log-level=error")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return env{stdout: io.Discard, stderr: &errs, backend: backend}.run(ctx, args), errs.String()
	}
	serve := []string{"--node-name=n", "--manifests", t.TempDir(), "--http-address="}
	if status, text := run(serve...); status != 1 || !strings.Contains(text, "held 1 times") || held != 0 {
		t.Errorf("alone: exit status %d, %q, held %d", status, text, held)
	}
	opened, taken = 0, errors.New("HNS is in use")
	for _, args := range [][]string{serve, {"uninstall"}} {
		if status, text := run(args...); status != 1 || !strings.Contains(text, "HNS is in use") || opened > 0 {
			t.Errorf("%v: exit status %d, %q, opened %d", args, status, text, opened)
		}
	}
}

// closer is a function as an io.Closer.
type closer func()

func (c closer) Close() error { c(); return nil }
