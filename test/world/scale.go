// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Scale is the size of a large cluster in which policies tell nearly every pod from
// every other: the hard case for programs that work with classes of pods. There are 50
// pods to a node and to a namespace, 400 apps, 23 teams and 60 features; each pod has
// two more labels that no other pod has. Ten of the policies are for the whole cluster.
type Scale struct {
	Pods, Policies int
	Seed           uint64
}

// The shape of a Scale.
const (
	scaleCrowd    = 50 // pods of a node, and of a namespace
	scaleApps     = 400
	scaleTeams    = 23
	scaleFeatures = 60
	scaleCluster  = 10 // policies that are for the whole cluster
)

// Manifests returns the objects as YAML files by name. Equal sizes and seeds
// give equal files.
func (s Scale) Manifests() map[string][]byte {
	g := &scaled{Scale: s, Rand: rand.New(rand.NewPCG(s.Seed, 3)), files: make(map[string]*bytes.Buffer)}
	crowds := max(1, s.Pods/scaleCrowd)
	for i := range crowds {
		g.put("nodes.yaml", `apiVersion: v1
kind: Node
metadata: {name: node-%d, labels: {kubernetes.io/os: linux, kubernetes.io/hostname: node-%d, zone: zone-%d}}
spec: {podCIDRs: [%s/24]}
status: {addresses: [{type: InternalIP, address: 192.168.%d.%d}]}
`, i, i, i%3, scaleAddress(i, 0), i/250, 1+i%250)
		g.put("namespaces.yaml", `apiVersion: v1
kind: Namespace
metadata: {name: ns-%d, labels: {team: team-%d, env: %s}}
`, i, i%scaleTeams, []string{"production", "staging", "test"}[i%3])
	}
	for i := range s.Pods {
		g.pod(i, crowds)
	}
	for i := range min(scaleCluster, s.Policies) {
		g.clusterPolicy(i)
	}
	for i := range max(0, s.Policies-scaleCluster) {
		g.policy(i, crowds)
	}
	files := make(map[string][]byte, len(g.files))
	for name, b := range g.files {
		files[name] = b.Bytes()
	}
	return files
}

// scaleAddress is an address of the range of a node.
func scaleAddress(node, host int) string {
	return fmt.Sprintf("10.%d.%d.%d", node/250, node%250, host)
}

type scaled struct {
	Scale
	*rand.Rand
	files map[string]*bytes.Buffer
}

// put adds a document to a file.
func (g *scaled) put(name, format string, args ...any) {
	if g.files[name] == nil {
		g.files[name] = &bytes.Buffer{}
	}
	fmt.Fprintf(g.files[name], "---\n"+format, args...)
}

func (g *scaled) pod(i, crowds int) {
	ns, node := i/scaleCrowd, i%crowds
	if ns >= crowds {
		ns = crowds - 1
	}
	labels := []string{fmt.Sprintf("app: app-%d", g.IntN(scaleApps)), fmt.Sprintf("team: team-%d", g.IntN(scaleTeams)),
		fmt.Sprintf("pod-template-hash: h%x", g.Uint32()), fmt.Sprintf("instance: pod-%d", i)}
	for _, f := range g.Perm(scaleFeatures)[:3] {
		labels = append(labels, fmt.Sprintf(`feature-%d: "on"`, f))
	}
	g.put(fmt.Sprintf("pods-%d.yaml", ns/10), `apiVersion: v1
kind: Pod
metadata: {name: pod-%d, namespace: ns-%d, labels: {%s}}
spec: {nodeName: node-%d, containers: [{name: c, ports: [{name: http, containerPort: %d}, {name: metrics, containerPort: 9090}]}]}
status: {phase: Running, podIP: %s}
`, i, ns, strings.Join(labels, ", "), node, 8080+i%2, scaleAddress(node, 2+i/crowds))
}

// labelSelector returns a selector of pods by one or two labels.
func (g *scaled) labelSelector() string {
	switch g.IntN(6) {
	case 0:
		return fmt.Sprintf("{matchLabels: {team: team-%d}}", g.IntN(scaleTeams))
	case 1:
		return fmt.Sprintf("{matchExpressions: [{key: feature-%d, operator: Exists}]}", g.IntN(scaleFeatures))
	case 2:
		return fmt.Sprintf("{matchExpressions: [{key: team, operator: NotIn, values: [team-%d, team-%d]}, {key: feature-%d, operator: Exists}]}",
			g.IntN(scaleTeams), g.IntN(scaleTeams), g.IntN(scaleFeatures))
	}
	apps := make([]string, 3)
	for i := range apps {
		apps[i] = fmt.Sprintf("app-%d", g.IntN(scaleApps))
	}
	return fmt.Sprintf("{matchExpressions: [{key: app, operator: In, values: [%s]}]}", strings.Join(apps, ", "))
}

func (g *scaled) namespaceSelector() string {
	switch g.IntN(4) {
	case 0:
		return "{}"
	case 1:
		return fmt.Sprintf("{matchLabels: {env: %s}}", []string{"production", "staging", "test"}[g.IntN(3)])
	}
	return fmt.Sprintf("{matchLabels: {team: team-%d}}", g.IntN(scaleTeams))
}

func (g *scaled) peer() string {
	switch g.IntN(8) {
	case 0, 1, 2:
		return fmt.Sprintf("{podSelector: %s}", g.labelSelector())
	case 3, 4, 5:
		return fmt.Sprintf("{namespaceSelector: %s, podSelector: %s}", g.namespaceSelector(), g.labelSelector())
	case 6:
		return fmt.Sprintf("{namespaceSelector: %s}", g.namespaceSelector())
	}
	a, b := g.IntN(200), g.IntN(8)
	return fmt.Sprintf("{ipBlock: {cidr: 172.16.%d.0/24, except: [172.16.%d.%d/28]}}", a, a, 16*b)
}

func (g *scaled) ports() string {
	number := func() int { return 8000 + 10*g.IntN(30) }
	switch g.IntN(6) {
	case 0:
		return "{port: http}"
	case 1:
		n := number()
		return fmt.Sprintf("{port: %d, endPort: %d}", n, n+5)
	case 2:
		return fmt.Sprintf("{port: %d}, {port: metrics}", number())
	case 3:
		return fmt.Sprintf("{port: %d, protocol: UDP}", number())
	}
	return fmt.Sprintf("{port: %d}, {port: 443}", number())
}

// rules is one to three rules of a NetworkPolicy.
func (g *scaled) rules(field string) string {
	var b strings.Builder
	for range 1 + g.IntN(3) {
		peers := make([]string, 1+g.IntN(3))
		for i := range peers {
			peers[i] = g.peer()
		}
		fmt.Fprintf(&b, "  - %s: [%s]\n", field, strings.Join(peers, ", "))
		if g.IntN(5) > 0 {
			fmt.Fprintf(&b, "    ports: [%s]\n", g.ports())
		}
	}
	return b.String()
}

func (g *scaled) policy(i, crowds int) {
	ns, kind := i%crowds, i/crowds
	head := fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: policy-%d, namespace: ns-%d}\nspec:\n", i, ns)
	switch {
	case kind == 0:
		g.put("policies.yaml", "%s  podSelector: {}\n  policyTypes: [Ingress]\n", head)
	case kind == 1:
		g.put("policies.yaml", "%s  podSelector: {}\n  policyTypes: [Egress]\n  egress:\n  - to: [{namespaceSelector: {matchLabels: "+
			"{kubernetes.io/metadata.name: ns-0}}}]\n    ports: [{port: 53, protocol: UDP}, {port: 53}]\n", head)
	case kind%3 == 2:
		g.put("policies.yaml", "%s  podSelector: %s\n  policyTypes: [Egress]\n  egress:\n%s", head, g.labelSelector(), g.rules("to"))
	default:
		g.put("policies.yaml", "%s  podSelector: %s\n  ingress:\n%s", head, g.labelSelector(), g.rules("from"))
	}
}

func (g *scaled) clusterPolicy(i int) {
	tier, actions := "Admin", []string{"Accept", "Deny", "Pass"}
	if i%5 == 4 {
		tier, actions = "Baseline", []string{"Accept", "Deny"}
	}
	g.put("policies.yaml", `apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: cluster-%d}
spec:
  tier: %s
  priority: %d
  subject: {namespaces: %s}
  ingress:
  - {action: %s, from: [{namespaces: {matchLabels: {team: team-%d}}}], protocols: [{tcp: {destinationPort: {number: %d}}}]}
  - {action: %s, from: [{pods: {namespaceSelector: {}, podSelector: %s}}]}
  egress:
  - {action: %s, to: [{networks: [203.0.%d.0/24]}, {nodes: {matchLabels: {zone: zone-%d}}}]}
`, i, tier, 10*i, g.namespaceSelector(), actions[i%len(actions)], g.IntN(scaleTeams), 9000+i, actions[(i+1)%len(actions)], g.labelSelector(),
		actions[(i+2)%len(actions)], 100+i, i%3)
}

// EditManifests returns the files of Manifests without the policies of some names. In
// the namespace with the number opened, if it is not negative, the policy that isolates
// all pods gets a rule that opens a port to all pods of the cluster.
func EditManifests(files map[string][]byte, without []string, opened int) map[string][]byte {
	edited := maps.Clone(files)
	isolating := fmt.Sprintf("policy-%d", opened) // policies are distributed over the namespaces in turn, and the isolating kind is first
	var kept []string
	for _, doc := range strings.Split(string(files["policies.yaml"]), "---\n") {
		named := func(name string) bool {
			return strings.Contains(doc, "metadata: {name: "+name+",") || strings.Contains(doc, "metadata: {name: "+name+"}")
		}
		if slices.ContainsFunc(without, named) {
			continue
		}
		if named(isolating) {
			doc += "  ingress: [{from: [{namespaceSelector: {}}], ports: [{port: 7777}]}]\n"
		}
		kept = append(kept, doc)
	}
	edited["policies.yaml"] = []byte(strings.Join(kept, "---\n"))
	return edited
}
