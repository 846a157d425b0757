// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// flowEvent is a line that isthmusctl events prints as JSON, with the fields that the tests read.
type flowEvent struct {
	Event struct {
		Pod       string `json:"pod_name"`
		Direction string `json:"direction"`
		Verdict   string `json:"verdict"`
		Policy    string `json:"policy"`
		Rule      string `json:"rule"`
		Cause     string `json:"cause"`
		Peer      string `json:"peer_name"`
		Protocol  string `json:"protocol"`
		Port      int    `json:"dst_port"`
	}
}

// next reads events up to the first wanted one, and returns it.
func next(t *testing.T, lines *bufio.Scanner, wanted func(flowEvent) bool) flowEvent {
	t.Helper()
	var seen []flowEvent
	for lines.Scan() {
		var e flowEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		if wanted(e) {
			return e
		}
		seen = append(seen, e)
	}
	t.Fatalf("no such event among %+v", seen)
	return flowEvent{}
}

// knock sends a datagram to a port of another pod, or opens a TCP connection, which may be refused.
func knock(t *testing.T, from, to *cluster.Pod, network string) {
	t.Helper()
	err := from.NS.Do(func() error {
		c, err := net.DialTimeout(network, net.JoinHostPort(address(to, false).String(), "7000"), 300*time.Millisecond)
		if err != nil {
			return nil // denied
		}
		defer c.Close()
		_, err = c.Write([]byte("12345678"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// sendUntilSeen makes flows by UDP and TCP from the client to the server until the follower of events has printed
// one that is allowed and one that is denied. It returns both.
func sendUntilSeen(t *testing.T, client, server *cluster.Pod, lines *bufio.Scanner) (allowed, denied flowEvent) {
	t.Helper()
	about := func(verdict, protocol string) func(flowEvent) bool {
		return func(e flowEvent) bool {
			return e.Event.Pod == "server" && e.Event.Direction == "ingress" && e.Event.Verdict == verdict && e.Event.Protocol == protocol
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				knock(t, client, server, "udp")
				knock(t, client, server, "tcp")
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	return next(t, lines, about("allow", "UDP")), next(t, lines, about("deny", "TCP"))
}

// TestFlowEvents checks that a client that follows the events of a node learns which policy decided. Events of the
// time without an agent are reported later. A Windows node explains denied flows.
func TestFlowEvents(t *testing.T) {
	c, pods := startCluster(t, manifests, cluster.Config{Linux: 2, Windows: 1})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	node, client, server := pods["server"].Node, pods["client"], pods["server"]
	follow := node.Ctl(ctx, "monitor", "--last", "0", "--pod", "test/server", "-o", "json")
	var stderr bytes.Buffer
	follow.Stderr = &stderr
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	defer follow.Wait()
	defer cancel()
	lines := bufio.NewScanner(out)
	first, second := sendUntilSeen(t, client, server, lines)
	allowed, denied := first.Event, second.Event
	if allowed.Policy != "NetworkPolicy test/server" || allowed.Rule != "0" || allowed.Peer != "client" || allowed.Port != 7000 {
		t.Errorf("event of an allowed flow: %+v", allowed)
	}
	if denied.Policy != "NetworkPolicy test/server" || !strings.HasPrefix(denied.Cause, "isolated for ingress") || denied.Peer != "client" {
		t.Errorf("event of a denied flow: %+v", denied)
	}
	metrics, _, err := node.Get("/metrics")
	if err != nil || !strings.Contains(metrics, `isthmus_flow_events_total{verdict="deny"}`) || !strings.Contains(metrics, `isthmus_flow_events_missed_total{reason="lost"} 0`) {
		t.Errorf("no metrics of flow events (%v)", err)
	}
	checkExemplar(t, node)

	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := follow.Wait(); err == nil || !strings.Contains(stderr.String(), "connection was lost") {
		t.Errorf("the agent is killed: the follower prints %q (%v)", stderr.String(), err)
	}
	knock(t, client, server, "tcp")
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	text := ctl(t, node.Ctl(ctx, "events", "--verdict", "deny"), "because the agent was away", func(out string) bool {
		return strings.Contains(out, "TCP/7000: isolated for ingress by NetworkPolicy test/server")
	})
	if strings.Contains(text, "UDP") {
		t.Errorf("--verdict deny prints an allowed flow:\n%s", text)
	}

	windowsEvents(ctx, t, c, pods)
}

// windowsEvents moves the server to the Windows node. A denied flow has its event there in the same words, and the
// node says that it shows no others.
func windowsEvents(ctx context.Context, t *testing.T, c *cluster.Cluster, pods map[string]*cluster.Pod) {
	t.Helper()
	server := *pods["server"].Pod
	if err := c.Detach(ctx, pods["server"]); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.OS == model.Windows })
	n := c.Nodes[i]
	server.Node, server.IPs = n.Name, nil
	if err := c.Manifests.WritePod(&server); err != nil {
		t.Fatal(err)
	}
	moved, _, err := c.Attach(ctx, &server)
	if err != nil {
		t.Fatal(err)
	}
	text := ctl(t, n.Ctl(ctx, "events"), "Windows explains a drop", func(out string) bool {
		knock(t, pods["client"], moved, "tcp")
		knock(t, pods["client"], moved, "udp")
		return strings.Contains(out, "TCP/7000: isolated for ingress by NetworkPolicy test/server")
	})
	if !strings.Contains(text, "(test/client)") || strings.Contains(text, "UDP") || !strings.Contains(text, "reports denied flows only: its data path does not show allowed ones") {
		t.Errorf("events of a Windows node:\n%s", text)
	}
	metrics, _, err := n.Get("/metrics")
	if err != nil || !strings.Contains(metrics, `isthmus_flow_events_total{verdict="deny"}`) || strings.Contains(metrics, `isthmus_flow_events_total{verdict="allow"}`) ||
		!strings.Contains(metrics, `isthmus_flow_events_missed_total{reason="lost"} 0`) {
		t.Errorf("metrics of flow events of a Windows node: %v", err)
	}
}

var exemplar = regexp.MustCompile(`(?m)^isthmus_flow_events_total\{verdict="deny"\} \S+ # \{flow_id="([0-9a-f-]{36})"\} 1\.0 \S+$`)

// checkExemplar reads the exemplar of denied flows, and finds its flow over Hubble's interface.
func checkExemplar(t *testing.T, node *cluster.Node) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket.Hubble(node.Socket()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := observer.NewObserverClient(conn)
	why := "none"
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		text, err := node.OpenMetrics()
		m := exemplar.FindStringSubmatch(text)
		if err != nil || m == nil {
			why = fmt.Sprintf("no exemplar (%v)", err)
			continue
		}
		stream, err := client.GetFlows(t.Context(), &observer.GetFlowsRequest{Number: 10, Whitelist: []*flow.FlowFilter{{Uuid: []string{m[1]}}}})
		if err != nil {
			t.Fatal(err)
		}
		if f, err := stream.Recv(); err == nil && f.GetFlow().GetUuid() == m[1] && f.GetFlow().GetVerdict() == flow.Verdict_DROPPED {
			return
		}
		why = "no flow " + m[1]
	}
	t.Errorf("the exemplar of denied flows: %s", why)
}

// ctl repeats a command until its output is wanted, and returns the output.
func ctl(t *testing.T, command *exec.Cmd, why string, wanted func(string) bool) string {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		var out bytes.Buffer
		again := exec.Command(command.Path, command.Args[1:]...)
		again.Stdout, again.Stderr = &out, &out
		err := again.Run()
		if err == nil && wanted(out.String()) {
			return out.String()
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%s: %v prints %q (%v)", why, command.Args, out.String(), err)
		}
	}
}
