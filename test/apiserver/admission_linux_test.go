// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// guarded holds two nodes with policies and an event, as controllers and kubelets write them.
const guarded = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/os: linux, pool: a}, annotations: {volumes.kubernetes.io/controller-managed-attach-detach: "true", isthmus.dev/fabric: auto}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24], taints: [{key: dedicated, value: a, effect: NoSchedule}]}
status: {capacity: {cpu: "4"}, allocatable: {cpu: "4"}, addresses: [{type: InternalIP, address: 192.168.0.1}], nodeInfo: {operatingSystem: linux, architecture: amd64, kubeletVersion: v1},
  images: [{names: [a], sizeBytes: 1}], conditions: [{type: Ready, status: "True", reason: KubeletReady, message: m, lastHeartbeatTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"},
    {type: DiskPressure, status: "False", reason: r, message: m, lastHeartbeatTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {kubernetes.io/os: linux}}
spec: {}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}], conditions: [{type: Ready, status: "True", reason: KubeletReady, message: m, lastHeartbeatTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
{apiVersion: v1, kind: Namespace, metadata: {name: guarded}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: guarded}, spec: {nodeName: n2, containers: [{name: c, image: none}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: key, namespace: guarded}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: guarded}, spec: {podSelector: {}}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guarded}
spec: {tier: Admin, priority: 41, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [169.254.169.254/32]}]}]}
`

// shipped returns the admission policies of a released manifest, with their bindings.
func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var policies []string
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(doc, "\nkind: ValidatingAdmissionPolic") {
			policies = append(policies, doc)
		}
	}
	if len(policies) == 0 || len(policies)%2 != 0 {
		t.Fatalf("%s has %d policies and bindings", file, len(policies))
	}
	return strings.Join(policies, "\n---\n")
}

// The content types of patches.
const (
	merge     = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
	jsonPatch = "application/json-patch+json"
	ssa       = "application/apply-patch+yaml"
)

// attempt is a request, and a part of the expected refusal; empty if the request is allowed.
type attempt struct{ what, method, path, kind, body, denied string }

// caller makes requests with one token.
type caller struct {
	client *http.Client
	host   string
}

func (s *Server) caller(t *testing.T, token string) caller {
	t.Helper()
	config := s.TokenConfig(token)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return caller{client, config.Host}
}

// do sends the request, optionally as a dry run, and returns the refusal, empty if there is none.
func (c caller) do(t *testing.T, a attempt, dry bool) (refusal string) {
	t.Helper()
	query := make(url.Values)
	if a.kind == ssa {
		query.Set("force", "true")
		query.Set("fieldManager", "attempt")
	}
	if dry {
		query.Set("dryRun", "All")
	}
	path := a.path + "?" + query.Encode()
	r, err := http.NewRequestWithContext(t.Context(), a.method, c.host+path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/json")
	if a.kind != "" {
		r.Header.Set("Content-Type", a.kind)
	}
	answer, err := c.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		t.Fatal(err)
	case answer.StatusCode < 300:
		return ""
	case answer.StatusCode != http.StatusForbidden:
		t.Fatalf("%s: %s %s: %s: %s", a.what, a.method, path, answer.Status, text)
	}
	return string(text)
}

// check compares the results of requests with the expected ones.
func (c caller) check(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		got := c.do(t, a, false)
		if (got == "") != (a.denied == "") || !strings.Contains(got, a.denied) {
			t.Errorf("%s: refused with %q, want %q", a.what, got, a.denied)
		}
	}
}

// awaitRefusal waits until an admission policy is in force, which takes the API server a moment. It sends dry
// runs, so that an accepted request changes nothing.
func (c caller) awaitRefusal(t *testing.T, a attempt) {
	t.Helper()
	eventually(t, "a refusal of: "+a.what, func() bool { return strings.Contains(c.do(t, a, true), a.denied) })
}

// condition returns an apply request for a condition of a Node.
func condition(node, kind, status string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"status":{"conditions":[{"type":%q,"status":%q,"reason":"r","message":"m","lastHeartbeatTime":"2026-02-01T00:00:00Z","lastTransitionTime":"2026-02-01T00:00:00Z"}]}}`, node, kind, status)
}

func policyCondition(kind string) string {
	return fmt.Sprintf(`{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":"guarded"},"status":{"conditions":[{"type":%q,"status":"False","reason":"r","message":"m","lastTransitionTime":"2026-02-01T00:00:00Z"}]}}`, kind)
}

// event returns an event of events.k8s.io about an object.
func event(name, controller, instance, kind, regarding, object string) string {
	return fmt.Sprintf(`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":%q,"namespace":"default"},"eventTime":"2026-02-01T00:00:00.000000Z","type":%q,"reason":"R","action":"A","note":"n","reportingController":%q,"reportingInstance":%q,"regarding":{"apiVersion":"v1","kind":%q,"name":%q}}`,
		name, kind, controller, instance, regarding, object)
}

const (
	node1Status  = "/api/v1/nodes/n1/status"
	node2Status  = "/api/v1/nodes/n2/status"
	policyStatus = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/guarded/status"
	eventsPath   = "/apis/events.k8s.io/v1/namespaces/default/events"

	noMeta        = "does not change labels, finalizers or owners"
	noAnnotation  = "changes no annotations of its Node but"
	noStatus      = "changes nothing of its Node's status but a condition"
	noCondition   = "changes no condition of its Node but isthmus.dev/PolicyEnforced"
	ofAnother     = "changes its own Node only, and its token is of node n1"
	noPolicyOther = "changes no conditions of policies but isthmus.dev/EnforcedOn*"
	noEvent       = "are warnings of isthmus.dev/agent on its own node, and its token is of node n1"
)

// byAgent are requests with the token of the agent on node n1.
var byAgent = []attempt{
	// What the agent needs.
	{"its condition", "PATCH", node1Status, ssa, condition("n1", "isthmus.dev/PolicyEnforced", "True"), ""},
	{"its condition, changed", "PATCH", node1Status, ssa, condition("n1", "isthmus.dev/PolicyEnforced", "False"), ""},
	{"its annotations", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"isthmus.dev/fabric":"vxlan","isthmus.dev/vtep-mac":"02:00:00:00:00:01","isthmus.dev/vtep-address":"192.168.0.1"}}}`, ""},
	{"an annotation of its own less", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"isthmus.dev/vtep-mac":null}}}`, ""},
	{"a condition of a policy", "PATCH", policyStatus, ssa, policyCondition("isthmus.dev/EnforcedOnLinux"), ""},
	{"an event about a pod", "POST", eventsPath, "", event("a1", "isthmus.dev/agent", "n1", "Warning", "Pod", "web"), ""},
	{"an event about its Node", "POST", eventsPath, "", event("a2", "isthmus.dev/agent", "n1", "Warning", "Node", "n1"), ""},
	{"pods", "GET", "/api/v1/pods", "", "", ""},
	{"nodes", "GET", "/api/v1/nodes", "", "", ""},

	// Its own Node.
	{"a label", "PATCH", node1Status, merge, `{"metadata":{"labels":{"pool":"b"}}}`, noMeta},
	{"a label more", "PATCH", node1Status, merge, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, noMeta},
	{"a label less", "PATCH", node1Status, merge, `{"metadata":{"labels":{"pool":null}}}`, noMeta},
	{"a finalizer", "PATCH", node1Status, merge, `{"metadata":{"finalizers":["example.com/stay"]}}`, noMeta},
	{"an owner", "PATCH", node1Status, merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]}}`, noMeta},
	{"another annotation", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"example.com/a":"b"}}}`, noAnnotation},
	{"another annotation of the project", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"isthmus.dev/other":"b"}}}`, noAnnotation},
	{"another's annotation, changed", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":"false"}}}`, noAnnotation},
	{"another's annotation, removed", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":null}}}`, noAnnotation},
	{"all annotations", "PATCH", node1Status, merge, `{"metadata":{"annotations":null}}`, noAnnotation},
	{"an address", "PATCH", node1Status, merge, `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.0.66"}]}}`, noStatus},
	{"capacity", "PATCH", node1Status, merge, `{"status":{"capacity":{"cpu":"400"}}}`, noStatus},
	{"an image", "PATCH", node1Status, merge, `{"status":{"images":[]}}`, noStatus},
	{"the kubelet's version", "PATCH", node1Status, merge, `{"status":{"nodeInfo":{"kubeletVersion":"v9"}}}`, noStatus},
	{"a field that was not there", "PATCH", node1Status, merge, `{"status":{"phase":"Running"}}`, noStatus},
	{"readiness", "PATCH", node1Status, ssa, condition("n1", "Ready", "False"), noCondition},
	{"a condition more", "PATCH", node1Status, ssa, condition("n1", "isthmus.dev/Other", "True"), noCondition},
	{"a condition less", "PATCH", node1Status, strategic, `{"status":{"conditions":[{"type":"DiskPressure","$patch":"delete"}]}}`, noCondition},
	{"all conditions", "PATCH", node1Status, merge, `{"status":{"conditions":[]}}`, noCondition},
	{"a condition twice", "PATCH", node1Status, jsonPatch, `[{"op":"copy","from":"/status/conditions/1","path":"/status/conditions/-"}]`, noCondition},
	{"a condition for another", "PATCH", node1Status, jsonPatch, `[{"op":"remove","path":"/status/conditions/0"},{"op":"copy","from":"/status/conditions/0","path":"/status/conditions/-"}]`, noCondition},
	{"readiness beside its condition", "PATCH", node1Status, strategic, `{"status":{"conditions":[{"type":"isthmus.dev/PolicyEnforced","status":"True"},{"type":"Ready","status":"False"}]}}`, noCondition},
	{"the Node itself", "PATCH", "/api/v1/nodes/n1", merge, `{"metadata":{"labels":{"pool":"b"}}}`, `cannot patch resource \"nodes\"`},
	{"replace the status", "PUT", node1Status, "", condition("n1", "isthmus.dev/PolicyEnforced", "True"), `cannot update resource \"nodes/status\"`},
	{"remove the Node", "DELETE", "/api/v1/nodes/n1", "", "", `cannot delete resource \"nodes\"`},
	{"make a Node", "POST", "/api/v1/nodes", "", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n9"}}`, `cannot create resource \"nodes\"`},

	// Other Nodes.
	{"another's condition", "PATCH", node2Status, ssa, condition("n2", "isthmus.dev/PolicyEnforced", "True"), ofAnother},
	{"another's tunnel", "PATCH", node2Status, merge, `{"metadata":{"annotations":{"isthmus.dev/vtep-address":"192.168.0.1"}}}`, ofAnother},
	{"another's label", "PATCH", node2Status, merge, `{"metadata":{"labels":{"pool":"b"}}}`, ofAnother},
	{"another's address", "PATCH", node2Status, merge, `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.0.1"}]}}`, ofAnother},
	{"another's readiness", "PATCH", node2Status, ssa, condition("n2", "Ready", "False"), ofAnother},

	// Policies, events.
	{"another's condition of a policy", "PATCH", policyStatus, ssa, policyCondition("Accepted"), noPolicyOther},
	{"a policy", "PATCH", "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/guarded", merge, `{"spec":{"priority":42}}`, "cannot patch resource"},
	{"a NetworkPolicy", "DELETE", "/apis/networking.k8s.io/v1/namespaces/guarded/networkpolicies/deny", "", "", "cannot delete resource"},
	{"an event of another node", "POST", eventsPath, "", event("b1", "isthmus.dev/agent", "n2", "Warning", "Pod", "web"), noEvent},
	{"an event of another controller", "POST", eventsPath, "", event("b2", "kubelet", "n1", "Warning", "Pod", "web"), noEvent},
	{"an event of another type", "POST", eventsPath, "", event("b3", "isthmus.dev/agent", "n1", "Normal", "Pod", "web"), noEvent},
	{"an event about another Node", "POST", eventsPath, "", event("b4", "isthmus.dev/agent", "n1", "Warning", "Node", "n2"), "makes no events about other Nodes"},
	{"an old event", "POST", "/api/v1/namespaces/default/events", "", `{"apiVersion":"v1","kind":"Event","metadata":{"name":"b5","namespace":"default"},"involvedObject":{}}`, `cannot create resource \"events\" in API group \"\"`},
	{"an event to read", "GET", eventsPath + "/a1", "", "", `cannot get resource \"events\"`},
	{"events to read", "GET", eventsPath, "", "", `cannot list resource \"events\"`},
	{"an event to remove", "DELETE", eventsPath + "/a1", "", "", `cannot delete resource \"events\"`},

	// The rest of the cluster.
	{"a secret", "GET", "/api/v1/namespaces/guarded/secrets/key", "", "", `cannot get resource \"secrets\"`},
	{"all secrets", "GET", "/api/v1/secrets", "", "", `cannot list resource \"secrets\"`},
	{"a pod's label", "PATCH", "/api/v1/namespaces/guarded/pods/web", merge, `{"metadata":{"labels":{"a":"b"}}}`, `cannot patch resource \"pods\"`},
	{"a pod to be made", "POST", "/api/v1/namespaces/guarded/pods", "", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, `cannot create resource \"pods\"`},
	{"the addresses that a namespace allows", "PATCH", "/api/v1/namespaces/guarded", merge, `{"metadata":{"annotations":{"isthmus.dev/allowed-addresses":"0.0.0.0/0"}}}`, `cannot patch resource \"namespaces\"`},
	{"another token", "POST", "/api/v1/namespaces/isthmus-system/serviceaccounts/isthmus-agent/token", "", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, `cannot create resource \"serviceaccounts/token\"`},
	{"the admission policy", "DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/isthmus-agent-nodes", "", "", "cannot delete resource"},
	{"its role", "PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/isthmus-agent", merge, `{"rules":[]}`, "cannot patch resource"},
}

// guard installs the admission policies, and makes service accounts with the names of the release.
func guard(t *testing.T, s *Server, policies string) {
	t.Helper()
	apply(t, s, guarded)
	account(t, s, "isthmus-agent", "isthmus-agent", "isthmus-agent-announce", "isthmus-agent-report")
	apply(t, s, policies)
	t.Cleanup(func() { // otherwise events stay, and the next test may find them
		for _, namespace := range []string{"default", "held"} {
			if err := s.call(context.Background(), "DELETE", "/apis/events.k8s.io/v1/namespaces/"+namespace+"/events", nil, &struct{}{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestStolenToken checks what an attacker with the token of one node's agent can and cannot do, under the
// roles and the admission policies of the release.
func TestStolenToken(t *testing.T) {
	s := running(t)
	policies := shipped(t, "isthmus.yaml")
	guard(t, s, policies)
	token, err := s.BoundToken(t.Context(), "isthmus-system", "isthmus-agent", "n1")
	if err != nil {
		t.Fatal(err)
	}
	c := s.caller(t, token)
	for _, what := range []string{"a label", "another's condition of a policy", "an event of another node"} { // one of each policy
		for _, a := range byAgent {
			if a.what == what {
				c.awaitRefusal(t, a)
			}
		}
	}
	c.check(t, byAgent)

	// The API server ignores changes to the spec in a request to the status subresource.
	c.check(t, []attempt{{"taints", "PATCH", node1Status, merge, `{"spec":{"taints":null,"unschedulable":true}}`, ""}})
	node, err := s.Get(t.Context(), manifestOf("Node n1"))
	if err != nil {
		t.Fatal(err)
	}
	if spec := fmt.Sprint(node.Object["spec"]); !strings.Contains(spec, "dedicated") || strings.Contains(spec, "unschedulable") {
		t.Errorf("spec of Node n1 is %s", spec)
	}

	// A token that belongs to no node writes nothing.
	loose, err := s.token(t.Context(), "isthmus-system", "isthmus-agent")
	if err != nil {
		t.Fatal(err)
	}
	s.caller(t, loose).check(t, []attempt{
		{"a condition of a Node", "PATCH", node1Status, ssa, condition("n1", "isthmus.dev/PolicyEnforced", "True"), "its token is of no node"},
		{"a condition of a policy", "PATCH", policyStatus, ssa, policyCondition("isthmus.dev/EnforcedOnLinux"), "with the token of a pod on a node only"},
		{"an event", "POST", eventsPath, "", event("c1", "isthmus.dev/agent", "n1", "Warning", "Pod", "web"), "its token is of no node"},
		{"pods", "GET", "/api/v1/pods", "", "", ""},
	})

	// The policies do not apply to other accounts.
	account(t, s, "bystander", "isthmus-agent-announce")
	other, err := s.BoundToken(t.Context(), "isthmus-system", "bystander", "n1")
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{"another account": other, "the administrator": s.keys.admin} {
		s.caller(t, token).check(t, []attempt{
			{name + ": a label", "PATCH", node2Status, merge, `{"metadata":{"labels":{"pool":"c"}}}`, ""},
			{name + ": readiness", "PATCH", node2Status, ssa, condition("n2", "Ready", "False"), ""},
		})
	}

	doctorWarns(t, s, token, policies)
	c.check(t, []attempt{{"a label, without the policies", "PATCH", node1Status, merge, `{"metadata":{"labels":{"pool":"b"}}}`, ""}})
}

// doctorWarns removes the admission policies, and checks that isthmusctl doctor, with the token of an agent,
// reports them before and their absence afterwards.
func doctorWarns(t *testing.T, s *Server, token, policies string) {
	t.Helper()
	kubeconfig, err := s.TokenKubeconfig("stolen", token)
	if err != nil {
		t.Fatal(err)
	}
	doctor := func() string {
		out, _ := exec.Command(filepath.Join(commands(t), "isthmusctl"), "doctor", "--kubeconfig", kubeconfig, "--node-name", "n1").CombinedOutput()
		return string(out) // this machine may not be a suitable node, so the exit status does not matter
	}
	if out := doctor(); !strings.Contains(out, "ok       credentials: the API server lets the agent change only the required fields of Nodes") {
		t.Errorf("with the policies:\n%s", out)
	}
	bindings := policies[strings.LastIndex(policies[:strings.Index(policies, "\nkind: ValidatingAdmissionPolicyBinding")], "\n---\n"):]
	if err := s.Delete(t.Context(), bindings); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a warning of the doctor without the policies", func() bool {
		return strings.Contains(doctor(), "warning  credentials: the API server lets the agent change labels of a Node")
	})
}

// TestStolenTokenWithoutAnnouncements checks the same if no node writes announcements.
func TestStolenTokenWithoutAnnouncements(t *testing.T) {
	s := running(t)
	policies := shipped(t, "isthmus.yaml")
	allowed := "['isthmus.dev/fabric', 'isthmus.dev/vtep-mac', 'isthmus.dev/vtep-address']"
	if strings.Count(policies, allowed) < 2 {
		t.Fatalf("the manifest does not allow %s", allowed)
	}
	guard(t, s, strings.ReplaceAll(policies, allowed, "[]"))
	token, err := s.BoundToken(t.Context(), "isthmus-system", "isthmus-agent", "n1")
	if err != nil {
		t.Fatal(err)
	}
	c := s.caller(t, token)
	a := attempt{"its tunnel", "PATCH", node1Status, merge, `{"metadata":{"annotations":{"isthmus.dev/vtep-address":"192.168.0.1"}}}`, noAnnotation}
	c.awaitRefusal(t, a)
	c.check(t, []attempt{a, {"its condition", "PATCH", node1Status, ssa, condition("n1", "isthmus.dev/PolicyEnforced", "True"), ""}})
}

// TestStolenTokenWithHybridOverlay checks that an agent publishes no range of another node for OVN-Kubernetes.
func TestStolenTokenWithHybridOverlay(t *testing.T) {
	s := running(t)
	policies := shipped(t, "isthmus.yaml")
	if strings.Count(policies, "'isthmus.dev/vtep-address']") < 2 {
		t.Fatal("the manifest does not allow annotations")
	}
	guard(t, s, strings.ReplaceAll(policies, "'isthmus.dev/vtep-address']",
		"'isthmus.dev/vtep-address', 'k8s.ovn.org/hybrid-overlay-node-subnet', 'k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac']"))
	token, err := s.BoundToken(t.Context(), "isthmus-system", "isthmus-agent", "n1")
	if err != nil {
		t.Fatal(err)
	}
	annotation := func(what, name, value, refusal string) attempt {
		return attempt{what, "PATCH", node1Status, merge, fmt.Sprintf(`{"metadata":{"annotations":{"k8s.ovn.org/%s":%s}}}`, name, value), refusal}
	}
	const subnet, notIts = "hybrid-overlay-node-subnet", "to a range of spec.podCIDRs of its Node only"
	c := s.caller(t, token)
	c.awaitRefusal(t, annotation("everything", subnet, `"0.0.0.0/0"`, notIts))
	c.check(t, []attempt{
		annotation("another's range", subnet, `"10.244.2.0/24"`, notIts),
		annotation("more than its range", subnet, `"10.244.0.0/22"`, notIts),
		annotation("the address of a service", subnet, `"10.96.0.1/32"`, notIts),
		annotation("no range", subnet, `""`, notIts),
		annotation("its range", subnet, `"10.244.1.0/24"`, ""),
		annotation("another's range instead", subnet, `"10.244.2.0/24"`, notIts),
		annotation("its MAC, beside the range", "hybrid-overlay-distributed-router-gateway-mac", `"02:00:00:00:00:01"`, ""),
		annotation("no range any more", subnet, "null", ""),
		annotation("the ranges of a node of OVN", "node-subnets", `"{\"default\":[\"10.244.2.0/24\"]}"`, noAnnotation),
		{"another's range for OVN", "PATCH", node2Status, merge, `{"metadata":{"annotations":{"k8s.ovn.org/hybrid-overlay-node-subnet":"10.244.2.0/24"}}}`, ofAnother},
	})
}

// TestStolenTokenOfTheController checks the same for the token of the controller.
func TestStolenTokenOfTheController(t *testing.T) {
	s := running(t)
	apply(t, s, guarded)
	if err := s.ApplyFiles(t.Context(), "../../deploy/rbac/controller.yaml"); err != nil {
		t.Fatal(err)
	}
	account(t, s, "isthmus-controller", "isthmus-controller")
	apply(t, s, shipped(t, "isthmus-controller.yaml"))
	token, err := s.BoundToken(t.Context(), "isthmus-system", "isthmus-controller", "n1")
	if err != nil {
		t.Fatal(err)
	}
	const node2 = "/api/v1/nodes/n2"
	const meta, spec = "changes no labels, annotations, finalizers or owners of Nodes", "changes nothing of the spec of Nodes but podCIDRs"
	c := s.caller(t, token)
	label := attempt{"a label", "PATCH", node2, merge, `{"metadata":{"labels":{"pool":"b"}}}`, meta}
	c.awaitRefusal(t, label)
	c.check(t, []attempt{
		label,
		{"an annotation", "PATCH", node2, merge, `{"metadata":{"annotations":{"isthmus.dev/fabric":"none"}}}`, meta},
		{"a finalizer", "PATCH", node2, merge, `{"metadata":{"finalizers":["example.com/stay"]}}`, meta},
		{"a taint", "PATCH", node2, merge, `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, spec},
		{"no scheduling", "PATCH", node2, merge, `{"spec":{"unschedulable":true}}`, spec},
		{"pod ranges and a taint", "PATCH", node2, merge, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"],"taints":[{"key":"a","effect":"NoExecute"}]}}`, spec},
		{"a status", "PATCH", node2Status, merge, `{"status":{"phase":"Running"}}`, `cannot patch resource \"nodes/status\"`},
		{"pod ranges", "PATCH", node2, merge, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}`, ""},
		{"secrets", "GET", "/api/v1/secrets", "", "", "cannot list resource"},
		{"pods", "GET", "/api/v1/pods", "", "", "cannot list resource"},
		{"an event about a pod", "POST", "/api/v1/namespaces/kube-system/events", "",
			`{"metadata":{"name":"told"},"involvedObject":{"kind":"Pod","namespace":"kube-system","name":"dns"},"reason":"Killed"}`, `cannot create resource \"events\"`},
	})
}

// TestAgentUnderAdmission runs the agent of a Windows node with a token like that of its pod. All its writes
// succeed.
func TestAgentUnderAdmission(t *testing.T) {
	s := running(t)
	apply(t, s, strings.ReplaceAll(reportWorld, "told", "held"))
	guard(t, s, shipped(t, "isthmus.yaml"))
	token, err := s.BoundToken(t.Context(), "isthmus-system", "isthmus-agent", "win1")
	if err != nil {
		t.Fatal(err)
	}
	foreign := attempt{"another's condition", "PATCH", node2Status, ssa, condition("n2", "isthmus.dev/PolicyEnforced", "True"), "its token is of node win1"}
	s.caller(t, token).awaitRefusal(t, foreign)
	kubeconfig, err := s.TokenKubeconfig("bound", token)
	if err != nil {
		t.Fatal(err)
	}
	node := startWindows(t, commands(t), kubeconfig, "--hns-mode", "overlay", "--management-ip", "192.168.0.77", "--management-mac", "00-15-5D-00-00-09")
	s.untilAnnotations(t, map[string]string{"isthmus.dev/fabric": "vxlan", "isthmus.dev/vtep-mac": "00:15:5d:00:00:09", "isthmus.dev/vtep-address": "192.168.0.77"})
	s.untilCondition(t, "AdminNetworkPolicy old-six", "isthmus.dev/EnforcedOnWindowsHNS13.3", func(c map[string]any) bool { return c != nil })
	s.untilCondition(t, "Node win1", "isthmus.dev/PolicyEnforced", func(c map[string]any) bool { return c != nil })
	s.untilEvents(t, "held", "NetworkPolicy", "six", 1)
	time.Sleep(time.Second)
	for _, what := range []string{"condition", "event", "node"} {
		if n := node.metric(t, fmt.Sprintf(`isthmus_report_requests_total{result="error",what=%q}`, what)); n > 0 {
			t.Errorf("%v writes of a %s failed", n, what)
		}
	}
	if n := node.metric(t, `isthmus_announce_requests_total{result="error"}`); n > 0 {
		t.Errorf("%v announcements failed", n)
	}
}
