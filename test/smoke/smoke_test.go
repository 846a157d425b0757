// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// simulated is a host whose HNS is in memory.
type simulated struct{ *hnstest.Fake }

func (simulated) Release() string                 { return "10.0.20348" }
func (s simulated) AddNamespace() (string, error) { return s.Fake.AddNamespace(), nil }
func (simulated) RemoveNamespace(string) error    { return nil }

// runProgram runs the program on a host, with executables that do not start.
func runProgram(t *testing.T, h host, args ...string) (int, string, string) {
	t.Helper()
	bin, out := t.TempDir(), t.TempDir()
	for _, name := range []string{"isthmus-agent.exe", "isthmus-cni.exe", "isthmusctl.exe", "isthmus-conformance.exe"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("no program"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var w bytes.Buffer
	code := run(t.Context(), append([]string{"--bin", bin, "--out", out}, args...), &w, func() (host, error) { return h, nil })
	return code, w.String(), out
}

// TestFailedStep checks that a failed step ends the run, that the run removes its objects, and that report and
// exit code show the failure.
func TestFailedStep(t *testing.T) {
	fake := hnstest.NewFake(hns.Server2022)
	code, text, out := runProgram(t, simulated{fake}, "--adapter", "Ethernet")
	if code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	for _, want := range []string{"start agent: start isthmus-agent.exe: ", "clean up: ", "nothing is left: network isthmus-smoke was still there", "smoke: windows=10.0.20348 hns=13.3 mode=l2bridge", " conformance=-1 left="} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "STATUS") {
		t.Errorf("steps after the failed one ran:\n%s", text)
	}
	if list, err := fake.Networks(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("networks %v, %v", list, err)
	}
	if js, err := os.ReadFile(filepath.Join(out, "smoke.json")); err != nil || !strings.Contains(string(js), `"Failed": 3`) {
		t.Errorf("%v\n%s", err, js)
	}
}

// TestNetworkOnAdapter checks the networks that the agent takes over.
func TestNetworkOnAdapter(t *testing.T) {
	for mode, want := range map[string]string{"l2bridge": "L2Bridge", "overlay": "Overlay", "nat": "NAT"} {
		fake := hnstest.NewFake(hns.Server2022)
		args := []string{"--mode", mode, "--adapter", "Ethernet"}
		if mode == "nat" {
			args = args[:2]
		}
		o, err := parse(args, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		s := newSmoke(o, simulated{fake}, &bytes.Buffer{})
		if err := s.makeNetwork(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := fake.Networks(t.Context())
		if err != nil || len(list) != 1 || !strings.EqualFold(string(list[0].Type), want) || list[0].Subnets()[0].IPAddressPrefix != "10.244.3.0/24" {
			t.Errorf("%s: %v, %+v", mode, err, list)
		}
		if mode == "nat" {
			continue
		}
		s.adapter = "none"
		s.network = "other"
		if err := s.makeNetwork(t.Context()); err == nil || !strings.Contains(err.Error(), `--adapter "none"`) {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// TestNAT checks a run on a NAT network: isthmus-conformance does not start here, the calls of HNS are measured all
// the same, and nothing is left.
func TestNAT(t *testing.T) {
	fake := hnstest.NewFake(hns.Server2022)
	code, text, out := runProgram(t, simulated{fake}, "--mode", "nat")
	var report Report
	js, err := os.ReadFile(filepath.Join(out, "smoke.json"))
	if err == nil {
		err = json.Unmarshal(js, &report)
	}
	if err != nil || code != exitFailed || report.Failed != 1 || report.calls() != 3*4*endpointsMeasured || report.Left != 0 {
		t.Errorf("exit code %d, %v, %+v\n%s", code, err, report, text)
	}
	for _, c := range report.Calls {
		if c.Pods != endpointsMeasured || c.P99 < c.P50 {
			t.Errorf("%+v", c)
		}
	}
	if list, err := fake.Networks(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("networks %v, %v", list, err)
	}
}

// TestCallsFail checks that each failed call of HNS ends the run with its name, and that no endpoint is left.
func TestCallsFail(t *testing.T) {
	for op, want := range map[string]string{"CreateEndpoint": "create: ", "AttachEndpoint": "attach: ", "ModifyEndpoint": "write: ", "DeleteEndpoint": "delete: "} {
		fake := hnstest.NewFake(hns.Server2022)
		measuring := false
		failed := make(map[string]bool)
		var mu sync.Mutex
		fake.Before(func(called, id string) error {
			mu.Lock()
			defer mu.Unlock()
			if called != op || !measuring || failed[op] {
				return nil
			}
			failed[op] = true
			return hns.NewError(op, hns.CodeInvalidPolicy, "planted")
		})
		o, err := parse([]string{"--mode", "nat", "--out", t.TempDir()}, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		s := newSmoke(o, simulated{fake}, &bytes.Buffer{})
		if err := errors.Join(s.makeNamespaces(t.Context()), s.makeNetwork(t.Context())); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		measuring = true
		mu.Unlock()
		if err := s.measureCalls(t.Context()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: %v", op, err)
		}
		if err := s.clean(t.Context()); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		if list, err := fake.Networks(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s: networks %v, %v", op, list, err)
		}
	}
}

// TestForeignNetwork checks that a run does not change networks of others.
func TestForeignNetwork(t *testing.T) {
	fake := hnstest.NewFake(hns.Server2022)
	if _, err := fake.CreateNetwork(t.Context(), hns.Network{Name: "Isthmus-Smoke", Type: hns.L2Bridge, Ipams: []hns.Ipam{{Subnets: []hns.Subnet{
		{IPAddressPrefix: "10.1.0.0/24", Routes: []hns.Route{{NextHop: "10.1.0.1", DestinationPrefix: "0.0.0.0/0"}}}}}}}); err != nil {
		t.Fatal(err)
	}
	before := fake.Dump()
	code, text, _ := runProgram(t, simulated{fake})
	if code != exitFailed || !strings.Contains(text, "network isthmus-smoke exists") || fake.Dump() != before {
		t.Errorf("exit code %d\n%s", code, text)
	}
	if code, text, _ := runProgram(t, simulated{fake}, "--remove", "--network", "other"); code != exitPassed || fake.Dump() != before {
		t.Errorf("removal of a network that is not there: exit code %d\n%s", code, text)
	}
	code, text, _ = runProgram(t, simulated{fake}, "--remove")
	if list, err := fake.Networks(t.Context()); code != exitPassed || err != nil || len(list) != 0 {
		t.Errorf("removal: exit code %d, %v, %v\n%s", code, list, err, text)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--help"}, exitPassed, "loses its connections"},
		{[]string{"more"}, exitUsage, "no arguments"},
		{[]string{"--mode", "transparent"}, exitUsage, "l2bridge, overlay or nat"},
		{[]string{"--mode", "nat", "--adapter", "Ethernet"}, exitUsage, "leave it out"},
		{[]string{"--network", ""}, exitUsage, "give a name"},
		{[]string{"--pod-cidr", "10.244.3.0/25"}, exitUsage, "24 bits"},
		{[]string{"--pod-cidr", "10.244.3.1/24"}, exitUsage, "24 bits"},
		{[]string{"--pod-cidr", "fd00::/24"}, exitUsage, "24 bits"},
		{[]string{"--node-address", "x"}, exitUsage, "give an address"},
		{[]string{"--timeout", "0s"}, exitUsage, "above 0"},
		{[]string{"--packet-time", "-1s"}, exitUsage, "0 or more"},
		{nil, exitFailed, "planted"},
	} {
		var w bytes.Buffer
		code := run(t.Context(), c.args, &w, func() (host, error) { return nil, errors.New("planted") })
		if code != c.code || !strings.Contains(w.String(), c.text) {
			t.Errorf("%q: exit code %d, want %d with %q\n%s", c.args, code, c.code, c.text, w.String())
		}
	}
}

// TestPacketTime checks that isthmus-conformance gets the time that the user gave, which the default of try.ps1 shortens.
func TestPacketTime(t *testing.T) {
	for given, want := range map[string]string{"": "30m0s", "3m": "3m0s", "0": "0s"} {
		args := []string{"--bin", t.TempDir()}
		if given != "" {
			args = append(args, "--packet-time", given)
		}
		o, err := parse(args, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		s := newSmoke(o, simulated{hnstest.NewFake(hns.Server2022)}, &bytes.Buffer{})
		s.namespaces = []string{"a", "b"}
		passed := s.conformanceArgs()
		if i := slices.Index(passed, "--packet-time"); i < 0 || passed[i+1] != want {
			t.Errorf("--packet-time %s: %v, want %s", given, passed, want)
		}
	}
	script, err := os.ReadFile(filepath.Join("..", "..", "deploy", "windows", "try.ps1"))
	if err != nil || !strings.Contains(string(script), "$PacketTime = '3m'") || !strings.Contains(string(script), "'--packet-time', $PacketTime") {
		t.Errorf("try.ps1 does not pass -PacketTime: %v", err)
	}
}

func TestLatency(t *testing.T) {
	all := []time.Duration{4 * time.Millisecond, time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}
	if l := latency(4, slices.Clone(all)); l.P50 != 3 || l.P99 != 4 || l.Pods != 4 || l.Concurrency != 4 {
		t.Errorf("%+v", l)
	}
	if l := latency(1, nil); l.P50 != 0 || l.Pods != 0 {
		t.Errorf("%+v", l)
	}
}

// TestInterrupted checks that an interrupted run removes its objects.
func TestInterrupted(t *testing.T) {
	fake := hnstest.NewFake(hns.Server2022)
	o, err := parse([]string{"--adapter", "Ethernet", "--bin", t.TempDir(), "--out", t.TempDir()}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"isthmus-agent.exe", "isthmus-cni.exe", "isthmusctl.exe", "isthmus-conformance.exe"} {
		if err := os.WriteFile(filepath.Join(o.bin, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var w bytes.Buffer
	s := newSmoke(o, interrupting{simulated{fake}, cancel}, &w)
	s.all(ctx)
	if list, err := fake.Networks(t.Context()); err != nil || len(list) != 0 || ctx.Err() == nil {
		t.Errorf("networks %v, %v\n%s", list, err, w.String())
	}
}

// interrupting is a host on which the run is interrupted as soon as the network is there.
type interrupting struct {
	simulated
	cancel context.CancelFunc
}

func (i interrupting) CreateNetwork(ctx context.Context, n hns.Network) (hns.Network, error) {
	defer i.cancel()
	return i.simulated.CreateNetwork(ctx, n)
}
