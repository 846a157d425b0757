// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/replay"
	"github.com/isthmus-net/isthmus/test/corpus"
)

var ctx = context.Background()

// tally counts results over all networks.
type tally struct {
	cnis, adopted, chained, cases, flows, allowed, observed, differ, changed, unpoliced int
}

func (y *tally) String() string {
	foreign := "kept"
	if y.changed > 0 {
		foreign = "changed"
	}
	return fmt.Sprintf("beside: cnis=%d adopted=%d chained=%d cases=%d flows=%d allowed=%d observed=%d differ=%d foreign=%s unpoliced_packets=%d",
		y.cnis, y.adopted, y.chained, y.cases, y.flows, y.allowed, y.observed, y.differ, foreign, y.unpoliced)
}

// TestBeside runs every network.
func TestBeside(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() || os.Getenv("ISTHMUS_BESIDE") == "" {
		t.Skip("needs root and programs of other projects: make test-beside runs it")
	}
	bin := t.TempDir()
	if err := cluster.Build(ctx, "../..", bin, os.Stderr); err != nil {
		t.Fatal(err)
	}
	all, err := replay.Cases(filepath.Join("..", "corpus"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 70 {
		t.Fatalf("%d cases: has the corpus other names now?", len(all))
	}
	y := &tally{}
	tested := networks()
	for i, w := range tested {
		t.Run(w.name, func(t *testing.T) {
			var chosen []corpus.Case
			for j := i; j < len(all); j += 12 { // other cases for every network
				chosen = append(chosen, all[j])
			}
			b := &bench{t: t, network: w, y: y}
			b.make(bin)
			b.alone(&chosen[0])
			b.installAndRemove(&chosen[0])
			b.adopted(chosen)
			b.chained(chosen)
			b.guarded()
			b.end()
			y.cnis++
		})
	}
	fmt.Println(y)
	if y.cnis < len(tested) {
		return // some failed, or were not chosen
	}
	if y.adopted == 0 {
		t.Error("no pod was adopted")
	}
	if y.observed == 0 {
		t.Error("no flow was denied while pods were observed")
	}
	if y.allowed == 0 || y.allowed == y.flows {
		t.Errorf("of %d flows %d were allowed: nothing is shown", y.flows, y.allowed)
	}
}

// bench is a cluster of two nodes with one network.
type bench struct {
	t       *testing.T
	network network
	y       *tally
	cluster *cluster.Cluster
	lab     *replay.Lab
	// plugins is the directory of plugins, and confs are the texts of the network's configurations by node.
	plugins string
	confs   map[string]string
	// empty is the picture of the nodes without pods.
	empty map[string]string
}

// config is that of a cluster of two nodes, the second one with Windows if the network needs it.
func (b *bench) config(bin, dir string) cluster.Config {
	c := cluster.Config{Dir: dir, Bin: bin, Linux: 2, OtherCNI: b.plugins, AgentFlags: []string{"--mode=policy"}}
	if b.network.windows {
		c.Linux, c.Windows, c.Wine, c.Overlay, c.WindowsFlags = 1, 1, true, b.network.overlay, c.AgentFlags
	}
	return c
}

// make makes the cluster, without agents.
func (b *bench) make(bin string) {
	b.t.Helper()
	b.plugins = b.t.TempDir()
	build(b.t, bin, b.network.uses...)
	names := b.network.uses
	if b.network.windows {
		buildWindows(b.t, bin)
		names = slices.Concat(names, windowsPlugins)
	}
	for _, name := range names {
		if err := os.Link(filepath.Join(bin, name), filepath.Join(b.plugins, name)); err != nil {
			b.t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("/run", "isthmus-beside-")
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := cluster.New(b.config(bin, dir))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if b.t.Failed() {
			for _, n := range c.Nodes {
				text, _ := os.ReadFile(n.Log())
				b.t.Logf("agent of %s:\n%s", n.Name, text[max(0, len(text)-6000):])
				if n.OS == model.Windows {
					objects, packets, err := n.HNS(ctx)
					b.t.Logf("HNS of %s: %v\n%s\n%s", n.Name, err, objects, packets[max(0, len(packets)-3000):])
				}
			}
		}
		if err := c.Close(); err != nil {
			b.t.Error(err)
		}
	})
	if only := b.network.only; only != nil {
		for _, n := range c.Nodes {
			n.PodCIDRs = slices.DeleteFunc(n.PodCIDRs, func(p netip.Prefix) bool { return !only(p) })
		}
	}
	if err := c.BootWindows(ctx); err != nil {
		b.t.Fatal(err)
	}
	b.cluster, b.lab = c, replay.New(c, func(i int) *cluster.Node { return c.Nodes[i%2] })
	b.confs = b.network.begin(b.t, c, bin)
	b.t.Cleanup(func() { // before the daemons of the network stop
		if err := c.DetachAll(ctx); err != nil {
			b.t.Error(err)
		}
	})
	if err := c.Manifests.WriteNodes(c.Nodes); err != nil {
		b.t.Fatal(err)
	}
}

// alone attaches the pods of a case by the network without Isthmus. Every pod must reach every
// other.
func (b *bench) alone(cs *corpus.Case) {
	b.t.Helper()
	first := cs.Steps[0]
	first.Documents = slices.DeleteFunc(slices.Clone(first.Documents), func(d string) bool {
		return strings.Contains(d, "kind: NetworkPolicy") || strings.Contains(d, "kind: ClusterNetworkPolicy")
	})
	if err := b.lab.Become(ctx, &first); err != nil {
		b.t.Fatal(err)
	}
	y := b.y
	b.y = &tally{}
	flows, wrong, err := b.lab.JudgeAlone(ctx)
	b.count("the network alone", flows, wrong, err)
	b.y = y
}

// installAndRemove starts the agents while pods run, removes Isthmus again, and compares the
// objects of other software.
func (b *bench) installAndRemove(cs *corpus.Case) {
	b.t.Helper()
	before := b.picture()
	b.start()
	for _, n := range b.cluster.Nodes {
		if text := b.network.read(b.t, n); b.network.single() != (text == b.confs[n.Name]) {
			b.t.Errorf("with Isthmus, the configuration of %s is\n%s", n.Name, text)
		}
	}
	b.remove()
	b.unchanged(before, "installing and removing Isthmus")
	b.alone(cs)
	b.clear()
	b.empty = b.picture()
}

// clear detaches all pods through the network alone. Some plugins leave the interfaces to the kernel, which removes them with
// the network namespaces, later.
func (b *bench) clear() {
	b.t.Helper()
	if err := errors.Join(b.cluster.DetachAll(ctx), b.cluster.Release()); err != nil { // servers keep the namespaces
		b.t.Fatal(err)
	}
	for _, n := range b.cluster.Nodes {
		wait(b.t, "the end of the interfaces of pods on "+n.Name, func() bool {
			// The node has a pair of its own.
			return strings.Count(b.show(n.Name, n.NS, "ip -o link show type veth"), "\n") == 1
		})
	}
	b.lab = replay.New(b.cluster, func(i int) *cluster.Node { return b.cluster.Nodes[i%2] })
}

// start starts the agents, and waits until runtimes would call the plugin.
func (b *bench) start() {
	b.t.Helper()
	if err := b.cluster.Start(ctx); err != nil {
		b.t.Fatal(err)
	}
	if !b.network.own { // else there is no file
		b.waitChained()
	}
}

func (b *bench) waitChained() {
	b.t.Helper()
	for _, n := range b.cluster.Nodes {
		wait(b.t, "isthmus-cni in the configuration of "+n.Name, func() bool {
			list, err := n.Network()
			return err == nil && list.Plugins[len(list.Plugins)-1].Network.Type == "isthmus-cni"
		})
	}
}

// remove stops the agents, and removes Isthmus from all nodes. It compares the files of other
// software.
func (b *bench) remove() {
	b.t.Helper()
	for _, n := range b.cluster.Nodes {
		if err := n.Stop(); err != nil {
			b.t.Fatal(err)
		}
		if out, err := n.Uninstall(); err != nil {
			b.t.Fatalf("uninstall from %s: %v\n%s", n.Name, err, out)
		}
		if text := b.network.read(b.t, n); text != b.confs[n.Name] {
			b.y.changed++
			b.t.Errorf("after removal the configuration of %s is\n%s\nwant\n%s", n.Name, text, b.confs[n.Name])
		}
	}
	if left, err := filepath.Glob(filepath.Join(b.plugins, "isthmus-cni*")); err != nil || len(left) > 0 {
		b.t.Errorf("after removal the plugin is still installed: %v, %v", left, err)
	}
}

// chained runs cases with pods that the chained plugin attaches, so that policy applies from the
// start. It kills the agents in between.
func (b *bench) chained(cases []corpus.Case) {
	b.t.Helper()
	b.start()
	seen := make(map[*cluster.Pod]bool)
	for k, cs := range cases {
		if k == len(cases)/2 {
			b.rewrite()
			for _, n := range b.cluster.Nodes {
				if err := n.Restart(ctx, syscall.SIGKILL); err != nil {
					b.t.Fatal(err)
				}
			}
		}
		for i := range cs.Steps {
			if err := b.lab.Become(ctx, &cs.Steps[i]); err != nil {
				b.t.Fatalf("%s, step %d: %v", cs.Name, i+1, err)
			}
			b.judge(fmt.Sprintf("%s, step %d", cs.Name, i+1))
			for _, p := range b.lab.Pods {
				seen[p] = true
			}
		}
		b.y.cases++
	}
	b.y.chained += len(seen)
	for _, p := range b.lab.Pods {
		if err := p.Check(ctx); err != nil && b.network.checks {
			b.t.Errorf("CHECK of %s: %v", p.PodID, err)
		}
	}
}

// rewrite writes the network's original configuration, as its installer does when it restarts.
func (b *bench) rewrite() {
	b.t.Helper()
	for _, n := range b.cluster.Nodes {
		write(b.t, filepath.Join(n.ConfDir(), b.network.file), []byte(b.confs[n.Name]))
	}
	b.waitChained()
}

// end removes Isthmus from nodes whose pods it attached. Then it detaches the pods through the
// network alone, and compares the nodes with those without pods.
func (b *bench) end() {
	b.t.Helper()
	b.remove()
	b.clear()
	b.unchanged(b.empty, "chained pods, and removing Isthmus", hnsObjects)
}

// judge compares every flow with the reference.
func (b *bench) judge(name string) {
	b.t.Helper()
	flows, wrong, err := b.lab.Judge(ctx)
	b.count(name, flows, wrong, err)
}

// count counts flows, and fails for those with a wrong verdict.
func (b *bench) count(name string, flows, wrong []*cluster.Flow, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	b.y.flows += len(flows)
	b.y.differ += len(wrong)
	for _, f := range flows {
		if f.Got == model.Allow {
			b.y.allowed++
		}
	}
	for _, f := range wrong[:min(5, len(wrong))] {
		b.t.Errorf("%s: %s to %s on %s, %s: cluster %s, reference egress %s, ingress %s", name, f.From.Name, f.To.PodID, f.To.Node.Name, f.Flow, f.Got, f.Egress, f.Ingress)
	}
	if len(wrong) > 0 {
		b.t.Fatalf("%s: %d of %d flows differ", name, len(wrong), len(flows))
	}
}
