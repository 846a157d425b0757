// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// Before and after an outage no stranger reaches db, vault or safe. A mixture of
// both states would open each of them: a policy of one kind is replaced by one of
// another kind, and a new rule accepts pods with an old label.
const (
	outageBefore = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: %[1]s}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: known, namespace: %[1]s}
spec: {podSelector: {matchLabels: {name: known}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}
`
	outageAfter = `
{apiVersion: v1, kind: Namespace, metadata: {name: guests-%[1]s, labels: {team: b}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: %[1]s}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}, {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: stranger}}}]
`
	// These policies replace each other.
	outageSmall = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %[2]s, namespace: %[1]s}
spec: {podSelector: {matchLabels: {app: %[2]s}}, policyTypes: [Ingress]}
`
	outageWide = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: %[2]s-%[1]s}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}, podSelector: {matchLabels: {app: %[2]s}}}}
  ingress: [{name: all, action: Deny, from: [{namespaces: {}}]}]
`
)

// TestOutageOfNodes disconnects the API server from agents whose pods have open flows, changes the cluster
// meanwhile, and reconnects it.
func TestOutageOfNodes(t *testing.T) {
	n := newNodes(t, 1)
	for _, way := range []struct {
		name        string
		leave, come func() error
		restart     bool // restart the agent of the second node during the outage
	}{
		{"halted", n.server.Halt, n.server.Continue, false},
		{"killed", n.server.KillAPI, func() error { return n.server.StartAPI(context.Background()) }, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			n.t = t
			o := n.newOutage(way.name)
			o.begin(way.leave)
			o.attachDuring()
			if way.restart {
				o.restartDuring()
			}
			o.change()
			o.end(way.come)
			o.judge()
		})
	}
	n.t = t
}

// outage is one outage, with separate namespaces.
type outage struct {
	*nodes
	space  string
	watch  *watchmen
	steady *steady
	known  *model.Pod
	// unknown is created while no API server can notify the agents.
	unknown *model.Pod
}

func (n *nodes) newOutage(name string) *outage {
	n.t.Helper()
	o := &outage{nodes: n, space: name}
	must(n.t, n.apply(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}\n---\n"+
		"{apiVersion: v1, kind: Namespace, metadata: {name: guests-%[1]s, labels: {team: a}}}\n---\n", name)+
		fmt.Sprintf(outageBefore, name)+"---"+fmt.Sprintf(outageSmall, name, "vault")+"---"+fmt.Sprintf(outageWide, name, "safe")))
	for _, p := range []struct {
		node            int
		space, name, is string
	}{{0, name, "steady", "client"}, {1, name, "db", "db"}, {1, name, "vault", "vault"}, {0, name, "safe", "safe"},
		{0, name, "leaving", "client"}, {0, "guests-" + name, "stranger", "stranger"}} {
		n.attach(n.place(p.node, p.space, p.name, map[string]string{"app": p.is, "name": p.name}))
	}
	o.known = n.place(0, name, "known", map[string]string{"app": "client", "name": "known"})
	n.settle()
	o.watch = startWatchmen(n.t, n.pods["stranger"], n.pods["db"], n.pods["vault"], n.pods["safe"])
	o.steady = beSteady(n.t, n.pods["steady"], n.pods["db"])
	o.expect("stranger", "db", model.Deny, 0)
	return o
}

// expect waits for a verdict in both families.
func (o *outage) expect(from, to string, want model.Verdict, patience time.Duration) {
	o.t.Helper()
	for _, v6 := range []bool{false, true} {
		a := asker{o.pods[from].NS, familyOf(o.pods[from].IPs, v6)}
		at := netip.AddrPortFrom(familyOf(o.pods[to].IPs, v6), watchPort)
		for deadline := time.Now().Add(patience); ; {
			limit := 300 * time.Millisecond
			if want == model.Allow {
				limit = 2 * time.Second
			}
			_, err := a.ask(model.UDP, at, limit)
			if want == model.Allow && err == nil || want == model.Deny && errors.Is(err, errSilence) {
				break
			}
			if time.Now().After(deadline) {
				o.t.Errorf("from %s to %s at %s: %v, want %s", from, to, at, err, want)
				break
			}
		}
	}
}

// begin disconnects the API server. Another one over the same data stays, which only the test knows.
func (o *outage) begin(leave func() error) {
	o.t.Helper()
	must(o.t, o.server.OpenSide(context.Background()))
	o.t.Cleanup(func() {
		if err := o.server.CloseSide(); err != nil {
			o.t.Error(err)
		}
	})
	must(o.t, leave())
	for i := range o.cluster.Nodes {
		o.reports(i, "API server", "the last known state stays in force")
	}
}

// attachDuring attaches a pod that the agent knows, under the last known policy. An unknown pod is refused with
// the reason.
func (o *outage) attachDuring() {
	o.t.Helper()
	known := o.attach(o.known)
	serveAt(o.t, known)
	if !o.logs(0, "the policy of the new pod may be out of date", "known") {
		o.t.Error("the agent does not say that a new pod's policy may be out of date")
	}
	o.expect("steady", "known", model.Allow, 0)
	o.expect("stranger", "known", model.Deny, 0)
	// The other node does not know its address.
	o.expect("known", "db", model.Deny, 0)

	o.unknown = o.place(0, o.space, "unknown", map[string]string{"app": "client", "name": "unknown"})
	_, _, err := o.cluster.Attach(context.Background(), o.unknown)
	if err == nil || !strings.Contains(err.Error(), "is not known to the agent") || !strings.Contains(err.Error(), "may be out of date") {
		o.t.Errorf("ADD of a pod that the agent does not know: %v", err)
	}
}

// restartDuring restarts an agent, which then knows nothing of the cluster: policy in force stays.
func (o *outage) restartDuring() {
	o.t.Helper()
	node := o.cluster.Nodes[1]
	must(o.t, node.Kill())
	must(o.t, node.Start())
	o.reports(1, "state of the cluster is not known")
	o.expect("stranger", "db", model.Deny, 0)
}

// change applies outageAfter, and removes a pod by DEL.
func (o *outage) change() {
	o.t.Helper()
	must(o.t, o.cluster.Detach(context.Background(), o.pods["leaving"]))
	must(o.t, o.remove(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: leaving, namespace: %s}}", o.space)))
	must(o.t, o.apply(fmt.Sprintf(outageAfter, o.space)+"---"+fmt.Sprintf(outageWide, o.space, "vault")+"---"+fmt.Sprintf(outageSmall, o.space, "safe")))
	must(o.t, o.remove(fmt.Sprintf(outageSmall, o.space, "vault")+"---"+fmt.Sprintf(outageWide, o.space, "safe")))
	time.Sleep(300 * time.Millisecond)
}

// end reconnects the API server and waits until all changes have arrived.
func (o *outage) end(come func() error) {
	o.t.Helper()
	must(o.t, come())
	o.settle()
	o.expect("known", "db", model.Allow, waiting)
	serveAt(o.t, o.attach(o.unknown))
	o.expect("unknown", "db", model.Allow, waiting)
	for i := range o.cluster.Nodes {
		o.recovers(i)
	}
	time.Sleep(300 * time.Millisecond)
}

// recovers waits until an agent has no problems: an API server that has just
// started ends a watch of a custom resource once more, and the agent retries only
// after a pause.
func (o *outage) recovers(node int) {
	o.t.Helper()
	for deadline := time.Now().Add(waiting); ; time.Sleep(100 * time.Millisecond) {
		s, err := o.cluster.Nodes[node].Status(context.Background())
		must(o.t, err)
		if len(s.Problems) == 0 {
			return
		}
		if time.Now().After(deadline) {
			o.t.Errorf("problems of node %d after the outage: %q", node+1, s.Problems)
			return
		}
	}
}

// judge counts packets that arrived although neither policy allows them, and proves that the test would detect
// such packets.
func (o *outage) judge() {
	o.t.Helper()
	exchanges, lost := o.steady.finish()
	sent, leaked := o.watch.count()
	o.t.Logf("outage: %s exchanges=%d lost=%d probes=%d leaked=%d", o.space, exchanges, lost, sent, leaked)
	if leaked != 0 || lost != 0 || sent < 1000 || exchanges < 100 {
		o.t.Errorf("neither the old nor the new policy: of %d packets %d came through; of %d allowed exchanges %d were lost", sent, leaked, exchanges, lost)
	}
	must(o.t, o.remove(fmt.Sprintf(outageAfter, o.space)[strings.Index(outageAfter, "---"):]+"---"+
		fmt.Sprintf(outageWide, o.space, "vault")+"---"+fmt.Sprintf(outageSmall, o.space, "safe")))
	o.settle()
	time.Sleep(100 * time.Millisecond)
	if seen := o.watch.finish(); seen != 6 {
		o.t.Errorf("without policy %d of 6 watched addresses are reached", seen)
	}
	must(o.t, o.cluster.DetachAll(context.Background()))
	o.pods = make(map[string]*cluster.Pod)
}
