// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// hubbleManifests deny by isolation, by a rule, in both directions and by address.
const hubbleManifests = manifests + `
---
apiVersion: v1
kind: Pod
metadata: {name: web-5f-abcde, namespace: shop, labels: {app: web, pod-template-hash: 5f}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {}}], ports: [{port: 7000, protocol: TCP}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec:
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}
  ingress: [{name: no-shop, action: Deny, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}]
`

// seenEnd is an end of a flow, as the hubble command prints it.
type seenEnd struct {
	Identity  uint32   `json:"identity"`
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod_name"`
	Labels    []string `json:"labels"`
	Workloads []struct{ Name, Kind string }
}

// seenFlow is a line of the hubble command.
type seenFlow struct {
	Flow struct {
		UUID    string    `json:"uuid"`
		Time    time.Time `json:"time"`
		Verdict string    `json:"verdict"`
		IP      struct {
			Source, Destination netip.Addr
			Version             string `json:"ipVersion"`
		}
		L4 map[string]struct {
			Source      int `json:"source_port"`
			Destination int `json:"destination_port"`
		} `json:"l4"`
		Source, Destination seenEnd
		Node                string             `json:"node_name"`
		Direction           string             `json:"traffic_direction"`
		Reason              string             `json:"drop_reason_desc"`
		EventType           struct{ Type int } `json:"event_type"`
		EgressAllowed       []seenPolicy       `json:"egress_allowed_by"`
		IngressAllowed      []seenPolicy       `json:"ingress_allowed_by"`
		EgressDenied        []seenPolicy       `json:"egress_denied_by"`
		IngressDenied       []seenPolicy       `json:"ingress_denied_by"`
	} `json:"flow"`
}

type seenPolicy struct{ Kind, Namespace, Name string }

// hubble runs the command against the agent of a node and returns what it prints.
func hubble(t *testing.T, command string, n *cluster.Node, args ...string) string {
	t.Helper()
	return hubbleAt(t, command, "unix://"+n.Socket()+".hubble", args...)
}

// hubbleAt runs the command against a server.
func hubbleAt(t *testing.T, command, server string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command, append(args, "--server", server)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		t.Fatalf("hubble %q: %v\n%s%s", args, err, out.String(), errs.String())
	}
	return out.String()
}

// observe returns the flows that the command prints.
func observe(t *testing.T, command string, n *cluster.Node, args ...string) (list []seenFlow) {
	t.Helper()
	for line := range strings.Lines(hubble(t, command, n, append([]string{"observe", "-o", "json"}, args...)...)) {
		var f seenFlow
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if f.Flow.UUID == "" {
			t.Fatalf("hubble observe %q: not a flow: %s", args, line)
		}
		list = append(list, f)
	}
	return list
}

// either makes a condition on one end a condition on a flow.
func either(ok func(seenEnd) bool) func(seenFlow) bool {
	return func(f seenFlow) bool { return ok(f.Flow.Source) || ok(f.Flow.Destination) }
}

// requests are filters of the command, and a second implementation of what they mean. last limits to the newest
// flows, and first, if negative, to the oldest.
func requests(all []seenFlow) map[string]func(seenFlow) bool {
	sample := all[len(all)/2].Flow
	verdict := func(want string) func(seenFlow) bool {
		return func(f seenFlow) bool { return f.Flow.Verdict == want }
	}
	not := func(ok func(seenFlow) bool) func(seenFlow) bool { return func(f seenFlow) bool { return !ok(f) } }
	pod := func(namespace, prefix string) func(seenEnd) bool {
		return func(e seenEnd) bool {
			return e.Pod != "" && e.Namespace == namespace && strings.HasPrefix(e.Pod, prefix)
		}
	}
	everything := func(seenFlow) bool { return true }
	nothing := func(seenFlow) bool { return false }
	return map[string]func(seenFlow) bool{
		"":                        everything,
		"--verdict DROPPED":       verdict("DROPPED"),
		"--verdict FORWARDED":     verdict("FORWARDED"),
		"--not --verdict DROPPED": not(verdict("DROPPED")),
		"--pod test/server":       either(pod("test", "server")),
		"--pod test/ser":          either(pod("test", "ser")),
		"--pod test/none":         nothing,
		"--pod server":            nothing, // in the namespace default
		"--from-pod test/client --to-pod test/server": func(f seenFlow) bool {
			return pod("test", "client")(f.Flow.Source) && pod("test", "server")(f.Flow.Destination)
		},
		"--namespace shop":              either(pod("shop", "")),
		"--not --namespace shop":        not(either(pod("shop", ""))),
		"--from-namespace test":         func(f seenFlow) bool { return pod("test", "")(f.Flow.Source) },
		"--traffic-direction ingress":   func(f seenFlow) bool { return f.Flow.Direction == "INGRESS" },
		"--traffic-direction egress":    func(f seenFlow) bool { return f.Flow.Direction == "EGRESS" },
		"--label app=web":               either(func(e seenEnd) bool { return slices.Contains(e.Labels, "k8s:app=web") }),
		"--label reserved:world":        either(func(e seenEnd) bool { return slices.Contains(e.Labels, "reserved:world") }),
		"--to-label app=server":         func(f seenFlow) bool { return slices.Contains(f.Flow.Destination.Labels, "k8s:app=server") },
		"--type policy-verdict":         func(f seenFlow) bool { return f.Flow.EventType.Type == 5 },
		"--type drop":                   func(f seenFlow) bool { return f.Flow.EventType.Type == 1 },
		"--workload web":                either(func(e seenEnd) bool { return len(e.Workloads) > 0 && e.Workloads[0].Name == "web" }),
		"--workload Deployment/web":     either(func(e seenEnd) bool { return len(e.Workloads) > 0 && e.Workloads[0].Kind == "Deployment" }),
		"--protocol udp":                func(f seenFlow) bool { _, ok := f.Flow.L4["UDP"]; return ok },
		"--protocol tcp --to-port 7000": func(f seenFlow) bool { return f.Flow.L4["TCP"].Destination == 7000 },
		"--protocol http":               nothing,
		"-6":                            func(f seenFlow) bool { return f.Flow.IP.Version == "IPv6" },
		"-4":                            func(f seenFlow) bool { return f.Flow.IP.Version == "IPv4" },
		"--from-ip 10.244.0.0/16":       func(f seenFlow) bool { return netip.MustParsePrefix("10.244.0.0/16").Contains(f.Flow.IP.Source) },
		"--ip " + sample.IP.Source.String(): func(f seenFlow) bool {
			return f.Flow.IP.Source == sample.IP.Source || f.Flow.IP.Destination == sample.IP.Source
		},
		"--node-name linux*":                              everything,
		"--node-name other*":                              nothing,
		"--drop-reason-desc POLICY_DENY":                  func(f seenFlow) bool { return f.Flow.Reason == "POLICY_DENY" },
		"--drop-reason-desc POLICY_DENIED":                func(f seenFlow) bool { return f.Flow.Reason == "POLICY_DENIED" },
		"--uuid " + sample.UUID:                           func(f seenFlow) bool { return f.Flow.UUID == sample.UUID },
		"--reply":                                         nothing,
		"--http-path /":                                   nothing,
		fmt.Sprint("--identity ", sample.Source.Identity): either(func(e seenEnd) bool { return e.Identity == sample.Source.Identity }),
		"--until " + sample.Time.Format(time.RFC3339Nano): func(f seenFlow) bool { return !f.Flow.Time.After(sample.Time) },
		"--since " + sample.Time.Format(time.RFC3339Nano): func(f seenFlow) bool { return !f.Flow.Time.Before(sample.Time) },
	}
}

// hubbleCommand builds the command of Hubble that test/hubble/go.mod pins.
func hubbleCommand(t *testing.T) string {
	t.Helper()
	if os.Getenv("ISTHMUS_HUBBLE") == "" {
		t.Skip("make test-hubble runs it: it builds the hubble command, which takes minutes the first time")
	}
	path := filepath.Join(t.TempDir(), "hubble")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-X github.com/cilium/cilium/hubble/pkg.Version=1.20.2", "-o", path, "github.com/cilium/cilium/hubble")
	build.Dir, build.Env = "../hubble", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build hubble: %v\n%s", err, out)
	}
	return path
}

// TestHubble reads the flows of agents with the command of Hubble. Verdict and policy of every flow must be those of
// the reference evaluator, and every filter must select what a second implementation selects.
func TestHubble(t *testing.T) {
	command := hubbleCommand(t)
	c, pods := startCluster(t, hubbleManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--flow-event-burst=1000"}})
	for _, from := range pods {
		for _, to := range pods {
			if from != to {
				knock(t, from, to, "udp")
				knock(t, from, to, "tcp")
			}
		}
	}
	flows, err := c.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Try(t.Context(), flows, func(int) {}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // packets in flight, and the interval of reading events
	objects, err := c.Manifests.Objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	evaluator := policy.NewEvaluator(objects.Snapshot())
	sent, seen, differ := 0, 0, 0
	for _, n := range c.Nodes {
		all := observe(t, command, n, "--last", "4096")
		if len(all) < 20 {
			t.Fatalf("node %s has %d flows", n.Name, len(all))
		}
		seen += len(all)
		for _, f := range all {
			if fault := checkFlow(objects.Snapshot(), evaluator, f); fault != "" {
				t.Errorf("node %s: %s: %+v", n.Name, fault, f.Flow)
				differ++
			}
		}
		for args, keep := range requests(all) {
			for _, limit := range []string{"--last 4096", "--last 3", "--first 2"} {
				if limit != "--last 4096" && strings.HasPrefix(args, "--since") {
					continue // which takes precedence
				}
				sent++
				want := slices.DeleteFunc(slices.Clone(all), func(f seenFlow) bool { return !keep(f) })
				switch limit {
				case "--last 3":
					want = want[max(0, len(want)-3):]
				case "--first 2":
					want = want[:min(2, len(want))]
				}
				got := observe(t, command, n, strings.Fields(args+" "+limit)...)
				if !slices.EqualFunc(got, want, func(a, b seenFlow) bool { return a.Flow.UUID == b.Flow.UUID }) {
					t.Errorf("node %s: hubble observe %s %s: %d flows, want %d", n.Name, args, limit, len(got), len(want))
					differ++
				}
			}
		}
		sent += otherCommands(t, command, n, all)
	}
	sent += throughRelay(t, command, c, seen)
	fmt.Printf("hubble: requests=%d flows=%d differ=%d\n", sent, seen, differ)
}

// startRelay runs isthmus-relay over the nodes, and a node that does not exist, until the test ends. It returns the
// address of the relay.
func startRelay(t *testing.T, c *cluster.Cluster) (address string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "isthmus-relay")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/isthmus-relay").CombinedOutput(); err != nil {
		t.Fatalf("build isthmus-relay: %v\n%s", err, out)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	free.Close()
	args := []string{"--listen", address, "--http-address=", "--node", "win9=unix:///nonexistent"}
	for _, n := range c.Nodes {
		args = append(args, "--node", n.Name+"=unix://"+n.Socket()+".hubble")
	}
	var log bytes.Buffer
	relay := exec.Command(binary, args...)
	relay.Stderr = &log
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		relay.Process.Signal(os.Interrupt)
		if err := relay.Wait(); err != nil {
			t.Errorf("isthmus-relay: %v\n%s", err, log.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatalf("isthmus-relay does not listen: %v", err)
		}
	}
}

// throughRelay reads the flows of all nodes, and of one that does not answer, through isthmus-relay. It returns the
// number of requests.
func throughRelay(t *testing.T, command string, c *cluster.Cluster, flows int) int {
	t.Helper()
	address := startRelay(t, c)
	if out := hubbleAt(t, command, address, "status"); !strings.Contains(out, "Connected Nodes: 2/3") || !strings.Contains(out, "- win9") {
		t.Errorf("hubble status prints\n%s", out)
	}
	if out := hubbleAt(t, command, address, "list", "nodes"); strings.Count(out, "Connected") != 2 || strings.Count(out, "Unavailable") != 1 {
		t.Errorf("hubble list nodes prints\n%s", out)
	}
	var last time.Time
	got, unavailable := 0, false
	// The command writes states of nodes to the standard error.
	observed := exec.Command(command, "observe", "-o", "json", "--last", "4096", "--server", address)
	observed.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := observed.CombinedOutput()
	if err != nil {
		t.Fatalf("hubble observe through the relay: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		var f seenFlow
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if f.Flow.UUID == "" {
			unavailable = unavailable || strings.Contains(line, "NODE_UNAVAILABLE") && strings.Contains(line, "win9")
			continue
		}
		if f.Flow.Time.Before(last) {
			t.Errorf("a flow of %s follows one of %s", f.Flow.Time, last)
		}
		last = f.Flow.Time
		got++
	}
	if got != flows || !unavailable {
		t.Errorf("the relay sends %d flows of %d; it reports the node that does not answer: %t", got, flows, unavailable)
	}
	return 3
}

// checkFlow compares a flow with the reference evaluator, and returns what is wrong.
func checkFlow(s *model.Snapshot, e *policy.Evaluator, f seenFlow) string {
	x := f.Flow
	if x.EventType.Type != 5 {
		return "" // dropped for another reason than policy
	}
	end, direction, remote := x.Source, model.Egress, x.IP.Destination
	if x.Direction == "INGRESS" {
		end, direction, remote = x.Destination, model.Ingress, x.IP.Source
	}
	p, ok := s.Pods.Get(model.PodID{Namespace: end.Namespace, Name: end.Pod})
	if !ok {
		return "the pod is not known"
	}
	protocol, port := model.TCP, 0
	for name, l4 := range x.L4 {
		protocol, port = map[string]model.Protocol{"TCP": model.TCP, "UDP": model.UDP, "SCTP": model.SCTP, "ICMPv4": model.ICMP, "ICMPv6": model.ICMPv6}[name], l4.Destination
	}
	want := e.Endpoint(p, direction, remote, protocol, uint16(port))
	lists := map[string][]seenPolicy{"EGRESS FORWARDED": x.EgressAllowed, "INGRESS FORWARDED": x.IngressAllowed, "EGRESS DROPPED": x.EgressDenied, "INGRESS DROPPED": x.IngressDenied}
	verdict := map[model.Verdict]string{model.Allow: "FORWARDED", model.Deny: "DROPPED"}[want.Verdict]
	if x.Verdict != verdict {
		return "the evaluator says " + want.String()
	}
	named := seenPolicy{}
	for key, list := range lists {
		if len(list) > 0 && key != x.Direction+" "+verdict || len(list) > 1 {
			return "a policy is in the wrong list"
		}
		if len(list) == 1 {
			named = list[0]
		}
	}
	if c := want.Cause; c.Reason == model.ReasonRule || c.Reason == model.ReasonIsolated {
		if named != (seenPolicy{c.Origin.Kind, c.Origin.Namespace, c.Origin.Name}) {
			return "the evaluator says " + want.String()
		}
	} else if named != (seenPolicy{}) {
		return "no policy decides: " + want.String()
	}
	return ""
}

// otherCommands runs the commands without filters. It returns the number of requests.
func otherCommands(t *testing.T, command string, n *cluster.Node, all []seenFlow) int {
	t.Helper()
	for args, want := range map[string]string{
		"status":                                "Healthcheck (via unix://" + n.Socket() + ".hubble): Ok",
		"status -o json":                        fmt.Sprintf(`"num_flows":"%d","max_flows":"4096"`, len(all)),
		"list nodes":                            "default/" + n.Name,
		"list namespaces":                       "shop\n",
		"observe --last 4096 -o dict":           "VERDICT: DENIED",
		"observe --last 4096 -o compact":        "policy-verdict:L3-L4",
		"observe --last 4096 --print-node-name": "[" + n.Name + "]",
		"observe --last 4096 --verdict DROPPED --print-policy-names": "BY ",
		"observe --last 1 -o json --field-mask uuid":                 `"uuid"`,
	} {
		if out := hubble(t, command, n, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("hubble %s prints\n%s\nwithout %q", args, out, want)
		}
	}
	for args, want := range map[string][]string{
		"watch peers":                       {"PEER_ADDED", "linux1", "linux2"},
		"observe --follow --last 2 -o json": {all[len(all)-2].Flow.UUID, all[len(all)-1].Flow.UUID},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		cmd := exec.CommandContext(ctx, command, append(strings.Fields(args), "--server", "unix://"+n.Socket()+".hubble")...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		cancel()
		var exit *exec.ExitError
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &exit) {
			t.Errorf("hubble %s: %v", args, err)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("hubble %s prints\n%s\nwithout %q", args, out, w)
			}
		}
	}
	return 11
}
