// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// example is a Bundle of a node with some pods under policies, and its State.
func example(pods int) (*inspect.Bundle, *model.State) {
	self := &model.Node{Name: "n1", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, NodeInfo: model.NodeInfo{VTEP: model.MAC{2, 0, 0, 0, 0, 1}}}
	var all []*model.Pod
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	b := &inspect.Bundle{About: inspect.About{Format: inspect.Format, Node: "n1", Created: time.Unix(1e9, 0).UTC(), OS: model.Linux,
		Unsupported: []model.Unsupported{{Policy: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}, Rule: 1, Construct: "x"}}}}
	for i := range pods {
		p := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprintf("p%d", i)}, Node: "n1", Labels: model.MakeLabels(map[string]string{"app": fmt.Sprint("a", i%50)}),
			IPs:   []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
			Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: uint16(8000 + i%10)}}}
		all = append(all, p)
		if i < 110 {
			id := model.EndpointID(fmt.Sprintf("c%d:eth0", i))
			endpoints[id] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
			b.Endpoints = append(b.Endpoints, inspect.Endpoint{ID: id, Pod: p.PodID, Addresses: p.IPs})
		}
	}
	var policies []*model.Policy
	for i := range 50 {
		subject := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{fmt.Sprint("a", i)}})
		peer := model.MakeSelector(model.Requirement{Key: "app", Operator: model.NotIn, Values: []string{fmt.Sprint("a", (i+1)%50), "x"}}, model.Requirement{Key: "app", Operator: model.Exists})
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: fmt.Sprint("p", i)}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "shop", Pods: subject}, Isolates: [2]bool{true, i%2 == 0}}
		p.Rules[0] = []model.Rule{{Action: model.ActionAccept, Peers: []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "shop", Pods: peer}},
			{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("203.0.113.0/24"), Except: []netip.Prefix{netip.MustParsePrefix("203.0.113.128/25")}}}},
			Ports: []model.PortMatch{{Protocol: model.TCP, Name: "http"}, {Protocol: model.UDP, First: 53, Last: 53}}}}
		policies = append(policies, p)
	}
	s := model.MakeSnapshot(nil, []*model.Node{self}, all, policies)
	b.Cluster = inspect.MakeCluster(s)
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: "n1", Endpoints: endpoints, Limits: compile.DefaultLimits()})
	b.Installed = &inspect.Installed{State: state, NodeAddresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	b.Drift = []inspect.Drift{{Object: "verdicts", Endpoint: "c1:eth0", Detail: "x"}}
	b.Files = map[string][]byte{"metrics.txt": []byte("isthmus_ready 1\n")}
	return b, state
}

// TestRoundTrip checks that objects, texts of selectors and all decisions are read as they were
// written.
func TestRoundTrip(t *testing.T) {
	b, state := example(200)
	var file bytes.Buffer
	if err := b.Write(&file); err != nil {
		t.Fatal(err)
	}
	if !inspect.IsBundle(file.Bytes()) || inspect.IsBundle([]byte("kind: Pod")) {
		t.Error("IsBundle does not know its own files from others")
	}
	got, err := inspect.Read(bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.About, b.About) || !reflect.DeepEqual(got.Endpoints, b.Endpoints) || !reflect.DeepEqual(got.Drift, b.Drift) ||
		!reflect.DeepEqual(got.Files, b.Files) || !reflect.DeepEqual(got.Installed.NodeAddresses, b.Installed.NodeAddresses) {
		t.Errorf("got\n%+v\nwant\n%+v", got, b)
	}
	if !reflect.DeepEqual(got.Cluster.Pods, b.Cluster.Pods) || !reflect.DeepEqual(got.Cluster.Nodes, b.Cluster.Nodes) || !reflect.DeepEqual(got.Cluster.Policies, b.Cluster.Policies) {
		t.Error("the objects of the cluster differ")
	}
	remotes := []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::9")}
	for _, p := range b.Cluster.Pods[:60] {
		remotes = append(remotes, p.IPs...)
	}
	n := 0
	for id := range state.Policy.Endpoints {
		for _, d := range model.Directions {
			for _, remote := range remotes {
				for _, port := range []uint16{53, 80, 8001, 8005} {
					for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.ICMP} {
						n++
						want, is := state.Policy.Decide(id, d, remote, protocol, port).Verdict, got.Installed.State.Policy.Decide(id, d, remote, protocol, port).Verdict
						if is != want {
							t.Fatalf("%s %s %s %s %d: %s, want %s", id, d, remote, protocol, port, is, want)
						}
					}
				}
			}
		}
	}
	t.Logf("%d decisions", n)
}

// TestSize writes the Bundle of a node in a cluster with 10,000 pods.
func TestSize(t *testing.T) {
	b, _ := example(10000)
	var events, names bytes.Buffer // as many as an agent adds, of flows between all pods
	for i := range 10000 {
		fmt.Fprintf(&events, `{"time_unix_nano":"%d","pod_namespace":"shop","pod_name":"p%d","direction":"ingress","verdict":"deny","protocol":"TCP","source":"10.0.%d.%d","source_port":%d,"destination":"10.0.%d.%d","destination_port":%d,"remote_pod":"shop/p%d","cause":"isolated for ingress by NetworkPolicy shop/p%d, no rule accepts","policy":"NetworkPolicy shop/p%d"}`+"\n",
			1e18+i*7919, i, i>>8&255, i&255, 32768+i*7%28000, i*31>>8&255, i*31&255, 8000+i%10, i*31%10000, i%50, i%50)
		fmt.Fprintf(&names, "isthmus_series_%d{reason=\"x%d\"} %d\n", i%500, i, i*i)
	}
	b.Files["events.jsonl"], b.Files["metrics.txt"] = events.Bytes(), names.Bytes()
	var file bytes.Buffer
	began := time.Now()
	if err := b.Write(&file); err != nil {
		t.Fatal(err)
	}
	wrote := time.Since(began)
	if _, err := inspect.Read(bytes.NewReader(file.Bytes())); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, written in %s, read in %s", file.Len(), wrote, time.Since(began)-wrote)
	if file.Len() > 20<<20 || wrote > 10*time.Second {
		t.Errorf("%d bytes in %s, want at most 20 MiB in 10 s", file.Len(), wrote)
	}
}

// archive makes a file with other content.
func archive(t testing.TB, headers []tar.Header, content string) []byte {
	t.Helper()
	var file bytes.Buffer
	packed := gzip.NewWriter(&file)
	w := tar.NewWriter(packed)
	for _, h := range headers {
		h.Size = int64(len(content))
		if h.Typeflag != 0 && h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			w.Write([]byte(content))
		}
	}
	w.Close()
	packed.Close()
	return file.Bytes()
}

// large is the start of a file that unpacks to more than the limit.
func large(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	packed := gzip.NewWriter(&file)
	if err := tar.NewWriter(packed).WriteHeader(&tar.Header{Name: "isthmus-bundle/x", Size: inspect.MaxSize + 1}); err != nil {
		t.Fatal(err)
	}
	packed.Close()
	return file.Bytes()
}

// TestBadFiles checks that damaged and hostile files give an error, and leave nothing on disk.
func TestBadFiles(t *testing.T) {
	b, _ := example(3)
	b.About.Format = 99
	var newer bytes.Buffer
	if err := b.Write(&newer); err != nil {
		t.Fatal(err)
	}
	b, _ = example(3)
	b.Cluster.Policies[0].Tier = 77
	var tier bytes.Buffer
	if err := b.Write(&tier); err != nil {
		t.Fatal(err)
	}
	many := make([]tar.Header, 1001)
	for i := range many {
		many[i].Name = fmt.Sprintf("isthmus-bundle/f%d", i)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"text":      {[]byte("kind: Pod"), "not a bundle"},
		"empty":     {nil, "not a bundle"},
		"cut":       {newer.Bytes()[:newer.Len()/2], "not a bundle"},
		"other":     {archive(t, []tar.Header{{Name: "etc/passwd"}}, "x"), `holds "etc/passwd"`},
		"parent":    {archive(t, []tar.Header{{Name: "isthmus-bundle/../x"}}, "x"), "holds"},
		"link":      {archive(t, []tar.Header{{Name: "isthmus-bundle/x", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}}, ""), "holds"},
		"no parts":  {archive(t, []tar.Header{{Name: "isthmus-bundle/x"}}, "x"), "it has no about.json"},
		"bad JSON":  {archive(t, []tar.Header{{Name: "isthmus-bundle/about.json"}}, "x"), "about.json"},
		"many":      {archive(t, many, ""), "more than"},
		"newer":     {newer.Bytes(), "has format 99"},
		"bad enum":  {tier.Bytes(), "has tier 77"},
		"zero bomb": {large(t), "unpacks to more than"},
	} {
		if _, err := inspect.Read(bytes.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzInstalled decodes the part of a Bundle with numbers that refer to each other.
func FuzzInstalled(f *testing.F) {
	b, _ := example(5)
	raw, err := b.Installed.MarshalJSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"State":{"Tables":{"00000000000000000000000000000000":[{"Default":5},{"Default":-1}]}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var i inspect.Installed
		if i.UnmarshalJSON(raw) != nil || i.State == nil {
			return
		}
		for id := range i.State.Policy.Endpoints {
			i.State.Policy.Decide(id, model.Ingress, netip.MustParseAddr("10.0.0.1"), model.TCP, 80)
		}
	})
}

// FuzzCluster decodes the objects of a Bundle, and evaluates the selectors of every policy.
func FuzzCluster(f *testing.F) {
	b, _ := example(5)
	raw, err := json.Marshal(b.Cluster)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"Policies":[{"Tier":9}],"Pods":[null]}`))
	f.Add([]byte(`{"Policies":[{"Subject":{"Pods":[{"Key":"a","Operator":77}]}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := &inspect.Bundle{About: inspect.About{Format: inspect.Format}}
		if json.Unmarshal(raw, &b.Cluster) != nil {
			return
		}
		var file bytes.Buffer
		if b.Write(&file) != nil {
			return
		}
		read, err := inspect.Read(&file)
		if err != nil {
			return
		}
		s := read.Cluster.Objects().Snapshot()
		for _, p := range s.SortedPolicies() {
			_ = p.Tier.String() + p.Origin.String() + p.Subject.String()
			for _, rules := range p.Rules {
				for _, r := range rules {
					_ = r.Action.String()
					for _, peer := range r.Peers {
						_ = peer.String()
					}
				}
			}
			for _, pod := range s.Pods.All() {
				_ = p.Subject.MatchesNamespace(s.Namespace(pod.Namespace)) && p.Subject.Pods.Matches(pod.Labels)
			}
		}
		s.Owners()
	})
}
