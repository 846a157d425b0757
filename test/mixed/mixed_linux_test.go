// SPDX-License-Identifier: Apache-2.0

package mixed_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/corpus"
)

// tally counts flows by the systems of both ends; hosts outside the cluster count separately.
type tally struct {
	steps, flows, allowed, differ int
	explained, unexplained        int
	pairs                         map[string]int
}

func (y *tally) add(flows []*cluster.Flow) {
	letter := map[model.OS]string{model.Linux: "L", model.Windows: "W"}
	y.steps++
	for _, f := range flows {
		y.flows++
		if f.Got == model.Allow {
			y.allowed++
		}
		if f.Got != f.Want {
			y.differ++
		}
		if f.From.Node != nil {
			y.pairs[letter[f.From.Node.OS]+letter[f.To.Node.OS]]++
		}
	}
}

// TestMixed runs both kinds of cluster.
func TestMixed(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	chosen := cases(t)
	if len(chosen) < 70 {
		t.Fatalf("%d cases: has the corpus other names now?", len(chosen))
	}
	if os.Getenv("ISTHMUS_MIXED") == "" {
		var some []corpus.Case
		for i := 0; i < len(chosen); i += 16 {
			some = append(some, chosen[i])
		}
		chosen = some
	}
	bin := build(t)
	y := &tally{pairs: make(map[string]int)}
	for _, mode := range []struct {
		name string
		cfg  cluster.Config
	}{
		{"overlay", cluster.Config{Overlay: true, AgentFlags: []string{"--fabric=vxlan"}}},
		{"routes", cluster.Config{AgentFlags: []string{"--fabric=routes"}}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			l := newLab(t, bin, mode.cfg)
			l.meet(y)
			for _, c := range chosen {
				for i := range c.Steps {
					if err := l.Become(ctx, &c.Steps[i]); err != nil {
						t.Fatalf("%s, step %d: %v", c.Name, i+1, err)
					}
					l.judge(fmt.Sprintf("%s, step %d", c.Name, i+1), y)
				}
			}
			l.tunneled(mode.cfg.Overlay)
		})
	}
	fmt.Printf("mixed: nodes=4 wine=%t modes=2 cases=%d steps=%d flows=%d allowed=%d LL=%d LW=%d WL=%d WW=%d differ=%d explained=%d unexplained=%d\n", underWine(t), len(chosen), y.steps, y.flows, y.allowed,
		y.pairs["LL"], y.pairs["LW"], y.pairs["WL"], y.pairs["WW"], y.differ, y.explained, y.unexplained)
	for _, pair := range []string{"LL", "LW", "WL", "WW"} {
		if y.pairs[pair] < 100 {
			t.Errorf("only %d flows %s", y.pairs[pair], pair)
		}
	}
	if y.allowed == 0 || y.allowed == y.flows {
		t.Errorf("of %d flows %d were allowed: nothing is shown", y.flows, y.allowed)
	}
}

// meet places the pods of the corpus. Without policies every pod must reach every other by TCP and
// UDP, also with data larger than a packet.
func (l *lab) meet(y *tally) {
	l.t.Helper()
	all := cases(l.t)
	first := all[0].Steps[0]
	var objects []string
	for _, d := range first.Documents {
		if !bytes.Contains([]byte(d), []byte("kind: NetworkPolicy")) && !bytes.Contains([]byte(d), []byte("kind: ClusterNetworkPolicy")) {
			objects = append(objects, d)
		}
	}
	first.Documents = objects
	if err := l.Become(ctx, &first); err != nil {
		l.t.Fatal(err)
	}
	l.judge("no policies", y)
	for _, n := range l.Cluster.Nodes {
		if s, err := n.Status(ctx); err != nil || len(s.Problems) > 0 {
			l.t.Errorf("node %s: %v, problems %q", n.Name, err, s.GetProblems())
		}
	}
	for _, from := range l.Pods {
		for _, to := range l.Pods {
			if from.Node != to.Node {
				if err := transfer(from, to); err != nil {
					l.t.Errorf("200 kB from %s on %s to %s on %s: %v", from.PodID, from.Node.Name, to.PodID, to.Node.Name, err)
				}
			}
		}
	}
}

// transfer sends many full packets and waits for their echo.
func transfer(from, to *cluster.Pod) error {
	var c net.Conn
	err := from.NS.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to.IPs[0], 81).String(), 5*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	text := make([]byte, 200_000)
	go c.Write(text) // ends with the connection
	n, err := io.ReadFull(c, make([]byte, len(text)))
	if err != nil {
		return fmt.Errorf("%d bytes came back: %w", n, err)
	}
	return nil
}

// judge tries every flow.
func (l *lab) judge(name string, y *tally) {
	l.t.Helper()
	l.events.forget()
	flows, wrong, err := l.Judge(ctx)
	if err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	y.add(flows)
	for i, f := range wrong {
		if i < 5 {
			l.t.Errorf("%s: %s to %s on %s, %s: cluster %s, reference egress %s, ingress %s", name, f.From.Name, f.To.PodID, f.To.Node.Name, f.Flow, f.Got, f.Egress, f.Ingress)
		}
	}
	if len(wrong) > 0 {
		l.t.Errorf("%s: %d of %d flows differ", name, len(wrong), len(flows))
	}
	explained, missing := l.events.explain(flows)
	y.explained, y.unexplained = y.explained+explained, y.unexplained+len(missing)
	for _, text := range missing[:min(5, len(missing))] {
		l.t.Errorf("%s: %s", name, text)
	}
}

// tunneled checks the tunnels of the Linux nodes: with an overlay they have carried packets,
// otherwise there are none.
func (l *lab) tunneled(overlay bool) {
	l.t.Helper()
	for _, n := range l.Cluster.Nodes {
		if n.OS == model.Windows {
			continue
		}
		err := n.NS.Do(func() error {
			device, err := netlink.LinkByName(fabric.Device)
			if !overlay {
				if err == nil {
					return fmt.Errorf("there is a device %s", fabric.Device)
				}
				return nil
			}
			if err != nil {
				return err
			}
			if s := device.Attrs().Statistics; s.RxPackets < 100 || s.TxPackets < 100 {
				return fmt.Errorf("%d packets came by tunnel and %d left", s.RxPackets, s.TxPackets)
			}
			return nil
		})
		if err != nil {
			l.t.Errorf("node %s: %v", n.Name, err)
		}
	}
}
