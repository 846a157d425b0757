// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/corpus"
)

// Lab is a cluster that takes on the pods and policies of one case after the other.
type Lab struct {
	Cluster *cluster.Cluster
	// Pods are those of the current step.
	Pods map[model.PodID]*cluster.Pod
	// nodeOf returns the node of the pod with an index.
	nodeOf func(i int) *cluster.Node
	served map[served]bool
}

type served struct {
	pod  *cluster.Pod
	port cluster.Port
}

// New returns a Lab without pods. nodeOf distributes pods by their index in a case.
func New(c *cluster.Cluster, nodeOf func(i int) *cluster.Node) *Lab {
	return &Lab{Cluster: c, Pods: make(map[model.PodID]*cluster.Pod), nodeOf: nodeOf, served: make(map[served]bool)}
}

// Become changes the cluster to that of a step: its pods, on nodes of the lab and with addresses of
// the lab, and all other objects except Nodes.
func (l *Lab) Become(ctx context.Context, s *corpus.Step) error {
	var pods []*model.Pod
	for _, p := range s.Snapshot.Pods.All() {
		if p.Policed() {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
	if err := l.put(s.Documents, func(kind string) bool { return kind == "Namespace" }, 0, nil); err != nil {
		return err
	}
	for id, have := range l.Pods {
		if slices.ContainsFunc(pods, func(p *model.Pod) bool { return p.PodID == id }) {
			continue
		}
		if err := l.Cluster.Detach(ctx, have); err != nil {
			return err
		}
		if err := l.Cluster.Manifests.RemovePod(id); err != nil {
			return err
		}
		delete(l.Pods, id)
	}
	moved := make(map[netip.Addr]netip.Addr)
	for i, p := range pods {
		have, err := l.place(ctx, i, p)
		if err != nil {
			return err
		}
		for _, a := range p.IPs {
			for _, b := range have.IPs {
				if a.Is4() && b.Is4() {
					moved[a] = b
				}
			}
		}
	}
	return l.put(s.Documents, func(kind string) bool { return kind != "Namespace" && kind != "Node" && kind != "Pod" }, 1000, moved)
}

// place attaches a pod, or updates the labels and ports of an attached one.
func (l *Lab) place(ctx context.Context, i int, p *model.Pod) (*cluster.Pod, error) {
	pod := *p
	pod.Ports = slices.Clone(p.Ports)
	for _, extra := range []model.NamedPort{{Name: "more-tcp", Protocol: model.TCP, Port: 81}, {Name: "more-udp", Protocol: model.UDP, Port: 80}} {
		if !slices.ContainsFunc(pod.Ports, func(n model.NamedPort) bool { return n.Protocol == extra.Protocol && n.Port == extra.Port }) {
			pod.Ports = append(pod.Ports, extra)
		}
	}
	have := l.Pods[p.PodID]
	if have == nil {
		pod.Node, pod.IPs = l.nodeOf(i).Name, nil
		if err := l.Cluster.Manifests.WritePod(&pod); err != nil {
			return nil, err
		}
		var err error
		if have, _, err = l.Cluster.Attach(ctx, &pod); err != nil {
			return nil, err
		}
		l.Pods[p.PodID] = have
	} else {
		have.Pod.Labels, have.Pod.Ports = pod.Labels, pod.Ports
		if err := l.Cluster.Manifests.WritePod(have.Pod); err != nil {
			return nil, err
		}
	}
	for _, at := range have.Ports() {
		if k := (served{have, at}); !l.served[k] {
			if err := l.Cluster.ServeAt(have, at); err != nil {
				return nil, err
			}
			l.served[k] = true
		}
	}
	return have, nil
}

// put writes the documents of some kinds, numbered from first, and removes the additional ones of
// an earlier step.
func (l *Lab) put(documents []string, wanted func(kind string) bool, first int, moved map[netip.Addr]netip.Addr) error {
	n := first
	for _, d := range documents {
		var meta struct{ Kind string }
		if err := yaml.Unmarshal([]byte(d), &meta); err != nil {
			return err
		}
		if !wanted(meta.Kind) {
			continue
		}
		if err := l.Cluster.Manifests.Put(fmt.Sprintf("%04d", n), widen(translate(d, moved))); err != nil {
			return err
		}
		n++
	}
	for ; l.Cluster.Manifests.Drop(fmt.Sprintf("%04d", n)) == nil; n++ {
	}
	return nil
}

var address = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(/\d+)?\b`)

// excepting is a block with exceptions, as cases write it.
var excepting = regexp.MustCompile(`cidr: (\S+), except: \[([^\]]*)\]`)

// widen replaces blocks by blocks that include their exceptions: the pods of a range in a case may
// be on several nodes of the lab. Such a block becomes the range of all pods.
func widen(text string) string {
	return excepting.ReplaceAllStringFunc(text, func(s string) string {
		m := excepting.FindStringSubmatch(s)
		block, err := netip.ParsePrefix(m[1])
		if err != nil {
			return s
		}
		for _, e := range strings.Split(m[2], ",") {
			if p, err := netip.ParsePrefix(strings.Trim(e, ` "`)); err == nil && !block.Contains(p.Addr()) {
				return strings.Replace(s, m[1], "10.244.0.0/16", 1)
			}
		}
		return s
	})
}

// translate replaces the addresses of a case's cluster by those of the lab: of pods by their
// current address, of ranges and nodes by their number. Other addresses stay.
func translate(text string, moved map[netip.Addr]netip.Addr) string {
	return address.ReplaceAllStringFunc(text, func(s string) string {
		a, bits, _ := strings.Cut(s, "/")
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return s
		}
		if bits != "" {
			bits = "/" + bits
		}
		if to, ok := moved[addr]; ok && (bits == "" || bits == "/32") {
			return to.String() + bits
		}
		b := addr.As4()
		switch {
		case b[0] == 10 && b[1] == 0:
			b[1] = 244
		case b[0] == 192 && b[1] == 168 && b[2] == 0:
			b[0], b[1] = 172, 30
			switch {
			case len(bits) == 3 && bits > "/24" && bits != "/32":
				b[3], bits = 0, "/24" // a smaller range of the lab would contain other nodes
			case b[3] > 0 && b[3] < 5:
				b[3] += 10
			}
		}
		if p, err := netip.ParsePrefix(netip.AddrFrom4(b).String() + bits); err == nil && bits != "" {
			return p.Masked().String() // 10.0.0.0/8 contains the addresses of the lab too
		}
		return netip.AddrFrom4(b).String() + bits
	})
}

// Cases returns the cases of the corpus that need no cluster of their own, and that concern both
// systems.
func Cases(dir string) ([]corpus.Case, error) {
	all, err := corpus.Load(dir)
	return slices.DeleteFunc(all, func(c corpus.Case) bool {
		for _, f := range c.Archive.Files {
			if f.Name == "cluster.yaml" {
				return true
			}
		}
		return !slices.ContainsFunc([]string{"np-e2e-", "cnp-conformance-", "np-block"}, func(p string) bool { return strings.HasPrefix(c.Name, p) })
	}), err
}

// Judge waits until the agents enforce the objects. Then it tries every flow once, and again in the opposite order. It
// returns all flows, and those that differed from the reference at either time.
func (l *Lab) Judge(ctx context.Context) (flows, wrong []*cluster.Flow, err error) {
	if err := l.Cluster.Settle(ctx); err != nil {
		return nil, nil, err
	}
	return l.compare(ctx, l.Cluster.Try)
}

// JudgeAlone is Judge for a cluster without agents: it waits for nothing, and no counters must agree.
func (l *Lab) JudgeAlone(ctx context.Context) (flows, wrong []*cluster.Flow, err error) {
	return l.compare(ctx, l.Cluster.Open)
}

// compare tries all flows with a method of the cluster.
func (l *Lab) compare(ctx context.Context, try func(context.Context, []*cluster.Flow, func(int)) error) (flows, wrong []*cluster.Flow, err error) {
	if flows, err = l.Cluster.Flows(ctx); err != nil {
		return nil, nil, err
	}
	tries := slices.Clone(flows)
	for _, f := range slices.Backward(flows) {
		again := *f
		tries = append(tries, &again)
	}
	if err := try(ctx, tries, func(int) {}); err != nil {
		return nil, nil, err
	}
	for _, f := range tries {
		if f.Got != f.Want {
			wrong = append(wrong, f)
		}
	}
	return flows, wrong, nil
}
