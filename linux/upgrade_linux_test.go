// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// upgradeTraffic goes from pod a to pod b and outside, for both IP versions, while the programs
// are replaced. All pods are isolated in both directions, so a flow is cut if the programs lose
// it.
type upgradeTraffic struct {
	*lab
	pod      map[string]byte
	policies []*model.Policy
	open     *traffic.Connections
	stream   *traffic.Stream
	services []net.Conn
	// quiet are both ends of connections on which only the server sends, so no packet of the
	// client opens them again.
	quiet [][2]net.Conn
}

func newUpgradeTraffic(l *lab) *upgradeTraffic {
	l.t.Helper()
	u := &upgradeTraffic{lab: l, pod: map[string]byte{"a": 11, "b": 12}}
	l.pod("a", 11)
	l.echo(l.pod("b", 12), 8080)
	l.echo(l.outside, 8080)
	both := []model.PortMatch{tcp(7001), tcp(7002), tcp(8080), {Protocol: model.UDP, First: 7001, Last: 7001}}
	// Layout v1 evaluates the address of a Service, later ones that of the pod.
	u.policies = []*model.Policy{
		isolate("a", model.Ingress), isolate("b", model.Egress),
		isolate("a", model.Egress, accept(pods("b"), both...), accept(block(outsideAddr4+"/32"), both...), accept(block(outsideAddr6+"/128"), both...),
			accept(block(service4+"/32")), accept(block(service6+"/128"))),
		isolate("b", model.Ingress, accept(pods("a"), both...)),
	}
	l.apply(u.policies...)
	l.services()
	return u
}

// begin sends packets and opens connections.
func (u *upgradeTraffic) begin() {
	u.t.Helper()
	var targets []traffic.Target
	for _, to := range []struct {
		pod  string
		from byte
		ip   string
	}{{"b", 0, "10.1.0.12"}, {"b", 1, "fd01::c"}, {"", 0, outsideAddr4}, {"", 1, outsideAddr6}} {
		ns := u.outside
		if to.pod != "" {
			ns = u.pods[to.pod]
		}
		targets = append(targets, traffic.Target{NS: ns, From: podIPs(11)[to.from], To: netip.AddrPortFrom(netip.MustParseAddr(to.ip), 7001)})
	}
	connections, packets := 40, 8000
	if emulated() { // what its processor carries beside the agent
		connections, packets = 8, 400
	}
	var err error
	u.open, err = traffic.Connect(u.pods["a"], targets, connections)
	u.must(err)
	u.stream, err = traffic.NewStream(u.pods["a"], targets, packets)
	u.must(err)
	for i, to := range []string{service4 + ":80", service4 + ":81", "[" + service6 + "]:80", "[" + service6 + "]:81"} {
		// Older programs lose a connection to the backend from the same port (ADR 87), so the kernel must not choose the port.
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: 20000 + i}}
		u.must(u.pods["a"].Do(func() error {
			c, err := d.Dial("tcp", to)
			if err == nil {
				u.services = append(u.services, c)
				u.t.Cleanup(func() { c.Close() })
				err = traffic.Exchange(c, patience)
			}
			return err
		}))
	}
	b := u.pods["b"]
	u.connectQuietly(b, "10.1.0.12:7002", "10.1.0.12:7002")
	u.connectQuietly(b, "[fd01::c]:7002", "[fd01::c]:7002")
	u.connectQuietly(u.outside, outsideAddr4+":7002", outsideAddr4+":7002")
	u.connectQuietly(u.outside, "["+outsideAddr6+"]:7002", "["+outsideAddr6+"]:7002")
}

// connectQuietly opens a connection from pod a and keeps both ends.
func (u *upgradeTraffic) connectQuietly(server *netns.NS, listen, dial string) {
	u.t.Helper()
	var ln net.Listener
	u.must(server.Do(func() (err error) { ln, err = net.Listen("tcp", listen); return err }))
	defer ln.Close()
	var ends [2]net.Conn
	u.must(u.pods["a"].Do(func() (err error) { ends[0], err = net.DialTimeout("tcp", dial, patience); return err }))
	u.t.Cleanup(func() { ends[0].Close() })
	var err error
	ends[1], err = ln.Accept()
	u.must(err)
	u.t.Cleanup(func() { ends[1].Close() })
	u.quiet = append(u.quiet, ends)
}

// serversSpeak lets the servers send on all quiet connections.
func (u *upgradeTraffic) serversSpeak() {
	u.t.Helper()
	for _, c := range u.quiet {
		c[0].SetReadDeadline(time.Now().Add(patience))
		if _, err := c[1].Write([]byte("hello")); err != nil {
			u.t.Errorf("server %s speaks: %v", c[0].RemoteAddr(), err)
		} else if _, err := io.ReadFull(c[0], make([]byte, 5)); err != nil {
			u.t.Errorf("what server %s said does not arrive: %v", c[0].RemoteAddr(), err)
		}
	}
}

// watchSteps opens connections at every step of an upgrade, while packets flow.
func (u *upgradeTraffic) watchSteps() {
	u.step = func(name string) {
		if u.backend == nil || name == "write maps" || u.t.Failed() { // each flow that fails takes patience
			return
		}
		time.Sleep(10 * time.Millisecond)
		for _, to := range []string{"10.1.0.12", outsideAddr6} {
			if err := reach(u.pods["a"], "tcp", to, 8080, patience); err != nil {
				c, unread := u.backend.Counters(u.t.Context())
				u.t.Errorf("before step %q: connection to %s: %v; counters: %+v, %v", name, to, err, c, unread)
			}
		}
		u.serversSpeak()
	}
}

// ready waits until the node has resolved the host beyond, which takes IPv6 a second on new
// interfaces.
func (u *upgradeTraffic) ready() {
	u.t.Helper()
	var err error
	for range 20 {
		if err = reach(u.pods["a"], "tcp", outsideAddr6, 8080, silence); err == nil {
			return
		}
	}
	u.t.Fatal(err)
}

// judge checks open flows and new ones against policy, until a check has failed: each flow that fails takes patience.
func (u *upgradeTraffic) judge() {
	u.t.Helper()
	if u.t.Failed() {
		return
	}
	u.serversSpeak()
	for _, c := range u.services {
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte("hello")); err != nil {
			u.t.Errorf("connection to Service %s: %v", c.RemoteAddr(), err)
		} else if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			u.t.Errorf("connection to Service %s: %v", c.RemoteAddr(), err)
		}
	}
	u.allowed(u.pods["a"], "tcp", "10.1.0.12", 8080)
	u.allowed(u.pods["a"], "tcp", outsideAddr6, 8080)
	u.denied(u.outside, "tcp", "10.1.0.12", 8080)
	u.denied(u.pods["b"], "tcp", outsideAddr4, 8080)
}

// end checks that no packet was lost.
func (u *upgradeTraffic) end() {
	u.t.Helper()
	got, err := u.stream.Finish()
	u.must(err)
	resets, exchanges, resent := u.open.Finish()
	u.t.Logf("upgrade: packets=%d exchanges=%d lost=%d reset=%d (segments sent again: %d)", got.Sent, exchanges, got.Lost(), len(resets), resent)
	if got.Lost() != 0 || got.Twice != 0 || len(resets) != 0 {
		u.t.Errorf("of %d packets %d were lost (%d in the receivers' buffers), %d came twice; connections that broke: %v", got.Sent, got.Lost(), got.Overflowed, got.Twice, resets)
	}
	if got.Sent == 0 || exchanges == 0 {
		u.t.Error("there was no traffic")
	}
}

// adopt does what a starting agent does.
func (u *upgradeTraffic) adopt() {
	u.t.Helper()
	u.state = nil
	for name, n := range u.pod {
		u.must(u.add(name, n))
	}
	u.apply(u.policies...)
}

// settled checks that only the maps and programs of this layout are in force.
func (u *upgradeTraffic) settled() {
	u.t.Helper()
	layouts, err := os.ReadDir(u.bpffs)
	u.must(err)
	for _, d := range layouts {
		if strings.HasPrefix(d.Name(), "v") && d.Name() != loader.LayoutVersion {
			u.t.Errorf("%s is left", d.Name())
		}
	}
	u.sound()
	if faults := u.backend.Faults(); len(faults) > 0 {
		u.t.Errorf("faults: %q", faults)
	}
}

// age turns the current layout into an older one.
func (u *upgradeTraffic) age() {
	u.t.Helper()
	u.must(u.backend.Close())
	u.must(os.Rename(filepath.Join(u.bpffs, loader.LayoutVersion), filepath.Join(u.bpffs, "v1")))
}

// An agent replaces programs and maps of an older layout under traffic. The older programs use
// links or classifiers, and leave verdicts after DNAT to netfilter hooks or to a rule; the
// agent uses either.
func TestUpgradeUnderTraffic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		linked           bool
		rule, ruleBefore bool
	}{{"links", true, false, false}, {"classifiers", false, false, false}, {"rule", true, true, true}, {"from rule to hooks", false, false, true}, {"from hooks to rule", true, true, false}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			l.byRule = c.ruleBefore
			l.again()
			u := newUpgradeTraffic(l)
			for c.linked && l.idle() && l.classified("a", "b") > 0 {
			}
			u.begin()
			u.judge()
			u.age()
			l.byRule = c.rule
			u.watchSteps()
			l.start()
			u.judge() // by the old programs
			if faults := u.backend.Faults(); len(faults) != 1 || !strings.Contains(faults[0], "v1") {
				t.Errorf("faults before the first State: %q", faults)
			}
			u.sound()
			u.adopt()
			u.judge()
			u.settled()
			for l.idle() && l.classified("a", "b") > 0 {
			}
			u.judge()
			l.again() // as any restart
			u.adopt()
			u.judge()
			u.settled()
			u.end()
		})
	}
}

// A pod that is added before the older programs are replaced is policed at once. The next
// restart of the agent changes nothing.
func TestPodsComeAndGoInAnUpgrade(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	u := newUpgradeTraffic(l)
	u.begin()
	u.age()
	l.start()
	for name, n := range u.pod {
		l.must(l.add(name, n))
	}
	c := l.pod("c", 13)
	l.denied(c, "tcp", outsideAddr4, 8080)
	l.denied(c, "udp", outsideAddr4, 8080)
	u.judge()
	l.delete("c")
	l.must(l.add("c", 13))
	l.state, u.pod["c"] = nil, 13
	u.adopt()
	l.allowed(c, "tcp", outsideAddr4, 8080)
	l.denied(c, "tcp", "10.1.0.12", 8080)
	u.judge()
	u.settled()
	u.end()
}

// errCrash ends an agent in the middle of an operation.
var errCrash = errors.New("crash")

// crashAt ends the backend at the nth step from now, as SIGKILL would, during the start of an
// agent. It returns the name of the step, "" if there are fewer.
func (u *upgradeTraffic) crashAt(n int) (at string) {
	u.t.Helper()
	u.step = func(name string) {
		if n--; n == 0 {
			at = name
			panic(errCrash)
		}
	}
	defer func() { u.step = nil }()
	dies := func(f func() error) bool {
		u.must(u.node.Do(func() error {
			defer func() {
				if r := recover(); r != nil && r != any(errCrash) {
					panic(r)
				}
			}()
			return f()
		}))
		return at != ""
	}
	cfg := u.config()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	if dies(func() (err error) { u.backend, err = linux.New(context.Background(), cfg, quiet); return err }) {
		return at
	}
	for name, n := range u.pod {
		if dies(func() error { return u.addHere(name, n) }) {
			return at
		}
	}
	state := u.lab.state
	dies(func() error { _, err := u.backend.Apply(context.Background(), state); return err })
	return at
}

// An agent that is killed at any step of an upgrade loses nothing, and the next one completes
// it.
func TestUpgradeIsKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	u := newUpgradeTraffic(l)
	for l.idle() && l.classified("a", "b") > 0 {
	}
	u.begin()
	u.killAtEveryStep("divert classifiers")
	u.judge()
	u.end()
}

// killAtEveryStep kills an agent at each step of an upgrade. more are steps that must be among them.
func (u *upgradeTraffic) killAtEveryStep(more ...string) {
	u.t.Helper()
	var steps []string
	for n := 1; ; n++ {
		u.age()
		at := u.crashAt(n)
		if at != "" {
			steps = append(steps, at)
			u.must(u.backend.Close())
			u.judgeQuickly()
			u.start()
			u.adopt()
		}
		u.judgeQuickly()
		u.settled()
		if u.t.Failed() {
			u.t.Fatalf("after a crash at step %d, %q", n, at)
		}
		if at == "" {
			break
		}
	}
	u.t.Logf("killed at %d steps: %q", len(steps), steps)
	for _, want := range append(more, "divert", "migrate flows", "register endpoint again", "migrate flows again", "exchange programs",
		"migrate late flows", "take links", "load strict programs", "decide egress alone", "remove older layout") {
		if !strings.Contains(strings.Join(steps, ","), want) {
			u.t.Errorf("there was no step %q", want)
		}
	}
}

// judgeQuickly checks only verdicts that need no wait for silence.
func (u *upgradeTraffic) judgeQuickly() {
	u.t.Helper()
	u.serversSpeak()
	for _, c := range u.services {
		u.must(traffic.Exchange(c, patience))
	}
	u.allowed(u.pods["a"], "tcp", "10.1.0.12", 8080)
	u.allowed(u.pods["a"], "tcp", outsideAddr6, 8080)
}
