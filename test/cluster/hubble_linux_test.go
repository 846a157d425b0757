// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
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
	"github.com/isthmus-net/isthmus/test/netns"
)

// hubbleManifests deny by isolation, by a rule, in both directions and by address.
const hubbleManifests = manifests + `
---
apiVersion: v1
kind: Pod
metadata: {name: web-5f-abcde, namespace: shop, labels: {app: web, pod-template-hash: 5f}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: windows, namespace: test, labels: {app: server}}
spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: main}]}
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

// TestHubble reads the flows of two Linux nodes and a Windows node with the command of Hubble, from the agents and through
// the relay, for which one more node does not answer. Verdict and policy of every flow must be those of the reference
// evaluator, and every filter must select what a second implementation selects.
func TestHubble(t *testing.T) {
	command := hubbleCommand(t)
	nodes, pods := startCluster(t, hubbleManifests, cluster.Config{Linux: 2, Windows: 1, AgentFlags: []string{"--flow-event-burst=1000"},
		WindowsFlags: []string{"--flow-event-burst=1000"}})
	makeFlows(t, nodes, pods)
	objects, err := nodes.Manifests.Objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &comparison{t: t, command: command, home: t.TempDir(), snapshot: objects.Snapshot(), evaluator: policy.NewEvaluator(objects.Snapshot())}
	relay := server{"relay", startRelay(t, nodes), []string{"NODE_UNAVAILABLE", gone, "reports denied flows only"}}
	servers := []server{relay}
	for _, n := range nodes.Nodes {
		s := server{name: n.Name, address: hubbleSocket(n)}
		if n.OS == model.Windows {
			s.states = []string{"reports denied flows only"}
		}
		servers = append(servers, s)
	}
	kept := c.settle(relay)
	for _, f := range kept {
		c.check(relay, f)
	}
	for _, s := range servers {
		own := slices.DeleteFunc(slices.Clone(kept), func(f seenFlow) bool { return s.name != "relay" && f.Flow.Node != s.name })
		if len(own) < 10 {
			t.Fatalf("%s has %d flows", s.name, len(own))
		}
		c.filters(s, own, s.name == "relay")
		c.prints(s, c.otherCommands(s, own))
	}
	c.streams(servers, kept, pods)
	fmt.Printf("hubble: requests=%d flows=%d differ=%d\n", c.sent, len(kept), c.differ)
}

// gone is the node of the relay that does not answer.
const gone = "linux9"

// startRelay runs isthmus-relay over the nodes, and one that does not answer, until the test ends. It returns the
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
	args := []string{"--listen", address, "--http-address=", "--node", gone + "=unix:///nonexistent"}
	for _, n := range c.Nodes {
		args = append(args, "--node", n.Name+"="+hubbleSocket(n))
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

// makeFlows makes flows of every kind that the requests name.
func makeFlows(t *testing.T, c *cluster.Cluster, pods map[string]*cluster.Pod) {
	t.Helper()
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
	spoof(t, pods["client"], pods["server"])
}

// spoof sends a datagram from an address that the pod does not have.
func spoof(t *testing.T, from, to *cluster.Pod) {
	t.Helper()
	source := netip.MustParsePrefix("192.0.2.77/32")
	err := from.NS.Do(func() error {
		if err := netns.AddAddresses("lo", source); err != nil {
			return err
		}
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: source.Addr().AsSlice()}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(address(to, false), 7000)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("12345678"))
		return errors.Join(err, netns.RemoveAddresses("lo", source))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// settle returns the kept flows once no more come.
func (c *comparison) settle(s server) (kept []seenFlow) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Second) {
		before := len(kept)
		if kept = c.observe(s, "--last", "4096"); before == len(kept) && before > 0 {
			return kept
		}
	}
	c.t.Fatalf("flows still come: %d", len(kept))
	return nil
}

// otherCommands returns the commands without filters that a server answers, and parts of what they print.
func (c *comparison) otherCommands(s server, own []seenFlow) map[string][]string {
	all := map[string][]string{
		"status":                                {"Healthcheck (via " + s.address + "): Ok"},
		"status -o json":                        {fmt.Sprintf(`"num_flows":"%d"`, len(own))},
		"list nodes":                            {"default/" + s.name},
		"list namespaces":                       {"test\n"},
		"observe --last 4096 -o dict":           {"VERDICT: DENIED"},
		"observe --last 4096 -o compact":        {"policy-verdict:"},
		"observe --last 4096 --print-node-name": {"[" + own[0].Flow.Node + "]"},
		"observe --last 4096 --verdict DROPPED --print-policy-names": {"BY "},
		"observe --last 1 -o json --field-mask uuid":                 {`"uuid":"` + own[len(own)-1].Flow.UUID},
	}
	if s.name == "relay" {
		all["status"] = append(all["status"], "Connected Nodes: 3/4", "- "+gone)
		all["list nodes"] = []string{"default/linux1", "default/linux2", "default/win1", "default/" + gone, "Unavailable"}
		all["list namespaces"] = append(all["list namespaces"], "shop\n")
	}
	return all
}

// streams follows nodes and flows. It makes flows, so that it comes last.
func (c *comparison) streams(servers []server, kept []seenFlow, pods map[string]*cluster.Pod) {
	c.t.Helper()
	client, target, windows := pods["client"], pods["server"], pods["windows"]
	for _, s := range servers {
		names := []string{"linux1", "linux2", "win1"}
		wanted := map[string]bool{windows.Node.Name + " DROPPED": true, target.Node.Name + " FORWARDED": true, target.Node.Name + " DROPPED": true}
		if s.name == "relay" {
			names = append(names, gone)
		} else {
			for key := range wanted {
				if !strings.HasPrefix(key, s.name+" ") {
					delete(wanted, key)
				}
			}
			if len(wanted) == 0 {
				wanted = map[string]bool{s.name + " FORWARDED": true} // at the client
			}
			kept = c.observe(s, "--last", "4096")
		}
		c.peers(s, names...)
		c.follow(s, kept, wanted, func() {
			knock(c.t, client, target, "udp")
			knock(c.t, client, target, "tcp")
			knock(c.t, client, windows, "tcp")
		})
		kept = c.settle(servers[0])
	}
}
