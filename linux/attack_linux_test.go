// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// Tests whose names begin with TestAttack send forged packets that policy denies, and check
// whether they arrive. Each packet has its own word as payload. A volley ends with a packet
// that policy allows on the same path. Once it has arrived, so have all packets that passed
// before it.

// attacks counts the forged packets of all tests, and those that arrived.
var attacks struct{ tried, through atomic.Int64 }

// fewestAttacks is the number of attacks that all tests together try at least.
const fewestAttacks = 400

// TestMain writes the totals of attacks to the file in ISTHMUS_ATTACK_SUMMARY. It fails if all tests of attacks ran, but tried
// too few attacks: a lab that tries none holds everything.
func TestMain(m *testing.M) {
	code := m.Run()
	tried, through := attacks.tried.Load(), attacks.through.Load()
	if err := enoughAttacks(tried); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	if tried > 0 {
		line := fmt.Sprintf("attack: tried=%d held=%d bypass=%d\n", tried, tried-through, through)
		fmt.Print(line)
		if path := os.Getenv("ISTHMUS_ATTACK_SUMMARY"); path != "" {
			if err := os.WriteFile(path, []byte(line), 0o644); err != nil {
				fmt.Println(err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// enoughAttacks returns an error if all tests of attacks ran, but tried fewer than fewestAttacks.
func enoughAttacks(tried int64) error {
	chosen, skipped := flag.Lookup("test.run").Value.String(), flag.Lookup("test.skip").Value.String()
	listed := flag.Lookup("test.list").Value.String()
	all := (chosen == "" || chosen == "^TestAttack") && skipped == "" && listed == "" && os.Getuid() == 0 && !testing.Short()
	if all && tried < fewestAttacks {
		return fmt.Errorf("FAIL: %d attacks were tried, want %d at least", tried, fewestAttacks)
	}
	return nil
}

// onBothHooks runs an attack with tcx links and netfilter programs, with clsact hooks and an
// nftables rule, and on interfaces that another CNI plugin made.
func onBothHooks(t *testing.T, attack func(*testing.T, func(*linux.Config))) {
	onOwnHooks(t, attack)
	for name := range plugins {
		t.Run(name, func(t *testing.T) { attack(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, name }) })
	}
}

// onOwnHooks runs an attack on interfaces and tunnels that the backend made.
func onOwnHooks(t *testing.T, attack func(*testing.T, func(*linux.Config))) {
	t.Run("links", func(t *testing.T) { attack(t, func(*linux.Config) {}) })
	t.Run("rules", func(t *testing.T) {
		attack(t, func(c *linux.Config) { c.ByClassifiers, c.EgressByRule = true, true })
	})
}

// addressSet holds the addresses of one IP version in a lab: of pods a, b and c, and of others.
type addressSet struct {
	a, b, c, out, node string
	v6                 bool
}

var addressSets = []addressSet{
	{"10.1.0.11", "10.1.0.12", "10.1.0.13", outsideAddr4, nodeAddr4, false},
	{"fd01::b", "fd01::c", "fd01::d", outsideAddr6, nodeAddr6, true},
}

// wire is an interface as a program with CAP_NET_RAW sees it. It sends frames and records those
// that arrive.
type wire struct {
	t   *testing.T
	fd  int
	mac net.HardwareAddr
	got [][]byte // frames that arrived
}

func (l *lab) wire(ns *netns.NS, device string) *wire {
	l.t.Helper()
	w := &wire{t: l.t}
	l.must(ns.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		w.mac = i.HardwareAddr
		// Protocol 0: with ETH_P_ALL it would receive the packets of all interfaces until Bind.
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: i.Index})
	}))
	l.t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func htons(v uint16) uint16 { return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)) }

// send sends a frame. While the frames before it fill the buffer of the socket, it waits.
func (w *wire) send(frame []byte) {
	w.t.Helper()
	for again := 0; ; again++ {
		_, err := unix.Write(w.fd, frame)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) || again == 50 {
			w.t.Fatalf("send a frame: %v", err)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLOUT}}, 100)
	}
}

// receive reads all frames that have arrived.
func (w *wire) receive() {
	buf := make([]byte, 1<<17)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype != unix.PACKET_OUTGOING {
			w.got = append(w.got, bytes.Clone(buf[:n]))
		}
	}
}

// saw reports whether a word has arrived.
func (w *wire) saw(word string) bool {
	w.receive()
	for _, f := range w.got {
		if bytes.Contains(f, []byte(word)) {
			return true
		}
	}
	return false
}

// await waits until a word has arrived.
func (w *wire) await(word string) bool {
	for began := time.Now(); !w.saw(word); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			return false
		}
	}
	return true
}

// volley is a group of packets that are checked together.
type volley struct {
	l     *lab
	tries []attempted
}

// attempted is a packet that must not arrive.
type attempted struct {
	what, word string
	at         *wire
}

// word returns a word that no other packet has.
func (v *volley) word() string {
	return fmt.Sprintf("word-%06d-", attacks.tried.Add(1))
}

// try sends a frame that contains the given word. It must not arrive at the wire at.
func (v *volley) try(from, at *wire, what string, frame func(word string) []byte) {
	v.l.t.Helper()
	v.tryAll(from, at, what, func(word string) [][]byte { return [][]byte{frame(word)} })
}

// tryAll sends frames that belong together, for example the fragments of a datagram. They count as one attack.
func (v *volley) tryAll(from, at *wire, what string, frames func(word string) [][]byte) {
	v.l.t.Helper()
	word := v.word()
	v.tries = append(v.tries, attempted{what, word, at})
	for _, frame := range frames(word) {
		from.send(frame)
	}
}

// held sends the controls until each has arrived, and then checks the words. A control is a
// frame that policy allows on the same path.
func (v *volley) held(controls ...control) {
	v.l.t.Helper()
	for i, c := range controls {
		word := fmt.Sprintf("control-%d-%d-", attacks.tried.Load(), i)
		c.from.send(c.frame(word))
		if !c.at.await(word) {
			v.l.t.Errorf("control %d, which is allowed, did not arrive: the volley shows nothing", i)
		}
	}
	for _, t := range v.tries {
		if t.at.saw(t.word) {
			attacks.through.Add(1)
			v.l.t.Errorf("got through: %s", t.what)
		}
	}
	v.tries = nil
}

type control struct {
	from, at *wire
	frame    func(word string) []byte
}

// serialize returns the bytes of layers, with correct lengths and checksums.
func serialize(ls ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		panic(err)
	}
	return bytes.Clone(buf.Bytes())
}

func ethernet(src, dst net.HardwareAddr, ip gopacket.SerializableLayer) *layers.Ethernet {
	e := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	if _, ok := ip.(*layers.IPv6); ok {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	return e
}

// ipHeader returns a header of the addresses' IP version.
func ipHeader(src, dst string, protocol layers.IPProtocol) gopacket.SerializableLayer {
	s, d := net.ParseIP(src), net.ParseIP(dst)
	if s.To4() != nil {
		return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: protocol, SrcIP: s.To4(), DstIP: d.To4()}
	}
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: s, DstIP: d}
}

// packet returns an IP packet in an Ethernet frame.
func packet(src, dst net.HardwareAddr, ip gopacket.SerializableLayer, rest ...gopacket.SerializableLayer) []byte {
	for _, r := range rest {
		if sums, ok := r.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			sums.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
		}
	}
	return serialize(append([]gopacket.SerializableLayer{ethernet(src, dst, ip), ip}, rest...)...)
}

// udpFrame returns a datagram with a word.
func udpFrame(from *wire, to net.HardwareAddr, src, dst string, sport, dport uint16, word string) []byte {
	return packet(from.mac, to, ipHeader(src, dst, layers.IPProtocolUDP), &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}, gopacket.Payload(word))
}

// macIn returns the MAC of an interface in a namespace.
func (l *lab) macIn(ns *netns.NS, device string) (mac net.HardwareAddr) {
	l.t.Helper()
	l.must(ns.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	}))
	return mac
}

// hostMAC returns the MAC of the host end of a pod's veth pair.
func (l *lab) hostMAC(pod string) net.HardwareAddr {
	l.t.Helper()
	if l.plugin != nil {
		return l.gatewayMAC(pod)
	}
	return l.macIn(l.node, link.HostName(model.MakeEndpointID(pod, "eth0")))
}

func is6(addr string) bool { return strings.Contains(addr, ":") }

// guarded is a lab with the pods a and c, which exchange only UDP port 7777 with each other and
// with outside. It has wires to all three.
type guarded struct {
	*lab
	a, c       *netns.NS
	wa, wc, wo *wire
	host, up   net.HardwareAddr // of a's veth pair, and of the node's uplink
}

// policy allows controlPort everywhere in guarded labs.
const controlPort = 7777

func newGuarded(t *testing.T, change func(*linux.Config)) *guarded {
	t.Helper()
	g := &guarded{lab: newLabWith(t, change)}
	g.a, g.c = g.pod("a", 11), g.pod("c", 13)
	g.guard()
	g.wa, g.wc, g.wo = g.wire(g.a, "eth0"), g.wire(g.c, "eth0"), g.wire(g.outside, "eth0")
	g.host, g.up = g.hostMAC("a"), g.macIn(g.node, "eth0")
	for g.idle() {
	}
	return g
}

// guard applies the policies of guarded, and more.
func (g *guarded) guard(more ...*model.Policy) {
	g.t.Helper()
	anywhere := []model.Rule{accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))}
	var all []*model.Policy
	for _, pod := range []string{"a", "c"} {
		all = append(all, isolate(pod, model.Ingress, anywhere...), isolate(pod, model.Egress, anywhere...))
	}
	g.apply(append(all, more...)...)
}

// controls returns frames that policy allows on every path between a, c and outside.
func (g *guarded) controls(f addressSet) []control {
	sport := uint16(20000 + attacks.tried.Load()%20000)
	return []control{
		{g.wa, g.wc, func(w string) []byte { return udpFrame(g.wa, g.host, f.a, f.c, sport, controlPort, w) }},
		{g.wa, g.wo, func(w string) []byte { return udpFrame(g.wa, g.host, f.a, f.out, sport, controlPort, w) }},
		{g.wo, g.wc, func(w string) []byte { return udpFrame(g.wo, g.up, f.out, f.c, sport, controlPort, w) }},
	}
}

// paths returns the paths between a, c and outside.
func (g *guarded) paths(f addressSet) []path {
	return []path{{"a to c", f.a, f.c, g.wa, g.wc, g.host}, {"a to outside", f.a, f.out, g.wa, g.wo, g.host}, {"outside to c", f.out, f.c, g.wo, g.wc, g.up}}
}

type path struct {
	name, src, dst string
	from, at       *wire
	mac            net.HardwareAddr
}

// dial opens a TCP connection from a pod and exchanges a word over it.
func (l *lab) dial(pod, to string, port uint16) net.Conn {
	l.t.Helper()
	return l.dialFrom(l.pods[pod], to, port)
}

func (l *lab) dialFrom(from *netns.NS, to string, port uint16) (conn net.Conn) {
	l.t.Helper()
	l.must(from.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(to, fmt.Sprint(port)), patience)
		return err
	}))
	l.must(traffic.Exchange(conn, patience))
	return conn
}

func localPort(c net.Conn) uint16 {
	return netip.MustParseAddrPort(c.LocalAddr().String()).Port()
}

// neighbours counts the neighbour entries of the node on an interface.
func (l *lab) neighbours(device string) (n int) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all, err := link.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(i.Index, netlink.FAMILY_ALL) })
		n = len(all)
		return err
	}))
	return n
}

// sysctl sets a value under net, in the namespace of the thread.
func sysctl(path, value string) error {
	return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0)
}

// idleUntilQuiet runs Idle until the backend has seen all changes.
func (l *lab) idleUntilQuiet() {
	l.t.Helper()
	time.Sleep(1100 * time.Millisecond) // sources.period
	for l.idle() {
	}
}

// hearOn listens for datagrams in a namespace; heard reports whether any arrived.
func (l *lab) hearOn(ns *netns.NS, address string) (heard func() bool) {
	l.t.Helper()
	var pc net.PacketConn
	l.must(ns.Do(func() (err error) {
		pc, err = net.ListenPacket("udp", address)
		return err
	}))
	l.t.Cleanup(func() { pc.Close() })
	return func() bool { return hears(pc) }
}

// withoutAddress removes an address from an interface of the thread's namespace.
func withoutAddress(name, cidr string) error {
	return netns.RemoveAddresses(name, netip.MustParsePrefix(cidr))
}
