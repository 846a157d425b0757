// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// render writes everything that policies can see of the objects.
func render(o model.Objects) string {
	var b strings.Builder
	for _, n := range o.Namespaces {
		fmt.Fprintf(&b, "namespace %s labels{%s} allowed=%q\n", n.Name, n.Labels, n.AllowedIPs)
	}
	for _, n := range o.Nodes {
		fmt.Fprintf(&b, "node %s os=%s labels{%s} addresses=%v podCIDRs=%v\n", n.Name, n.OS, n.Labels, n.Addresses, n.PodCIDRs)
	}
	for _, p := range o.Pods {
		fmt.Fprintf(&b, "pod %s node=%s uid=%s labels{%s} ips=%v host=%t finished=%t created=%d ports=%v hostports=%v wants{%s} fixed=%q\n", p.PodID, p.Node, p.UID, p.Labels,
			p.IPs, p.HostNetwork, p.Finished, p.Created, p.Ports, p.HostPorts, o.NodeSelectors[p.PodID], p.FixedIPs)
	}
	for _, p := range o.Policies {
		fmt.Fprintf(&b, "policy %s uid=%s tier=%s priority=%d subject{%s} isolates=%v\n", p.Origin, p.Origin.UID, p.Tier, p.Priority, p.Subject, p.Isolates)
		for _, d := range model.Directions {
			for _, r := range p.Rules[d] {
				fmt.Fprintf(&b, "  %s %d %q %s", d, r.Index, r.Name, r.Action)
				if r.AnyPeer {
					b.WriteString("; any peer")
				}
				for _, p := range r.Peers {
					fmt.Fprintf(&b, "; peer %s", p)
				}
				if r.AnyPort {
					b.WriteString("; any port")
				}
				for _, m := range r.Ports {
					fmt.Fprintf(&b, "; port %s", m)
				}
				b.WriteString("\n")
			}
		}
	}
	return b.String()
}

// TestGoodDocuments compares all that is read from good documents, and the
// warnings, with a golden text.
func TestGoodDocuments(t *testing.T) {
	o, warnings, errs := LoadDir(context.Background(), "testdata/good", DefaultLimits())
	for _, e := range errs {
		t.Error(e)
	}
	var b strings.Builder
	b.WriteString(render(o))
	for _, w := range warnings {
		b.WriteString("warning: " + w.String() + "\n")
	}
	golden(t, "testdata/good.golden", b.String())
}

// TestOrderDoesNotMatter reads the good documents as one file, in the order of the directory and in
// reverse: apart from duplicates they mean the same.
func TestOrderDoesNotMatter(t *testing.T) {
	var docs [][]byte
	for _, name := range []string{"cluster.yaml", "sub/pods.yaml", "windows-lines.yml"} {
		data, err := os.ReadFile("testdata/good/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range splitYAML(data) {
			docs = append(docs, append([]byte("---\n"), d.text...))
		}
	}
	read := func() string {
		o, _, errs := Parse("all.yaml", slices.Concat(docs...), DefaultLimits())
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return render(o)
	}
	forwards := read()
	slices.Reverse(docs)
	if backwards := read(); backwards != forwards {
		t.Errorf("forwards:\n%s\nbackwards:\n%s", forwards, backwards)
	}
}
