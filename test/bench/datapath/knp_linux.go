// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/apiserver"
	"github.com/isthmus-net/isthmus/test/beside/programs"
	"github.com/isthmus-net/isthmus/test/netns"
)

// knp is the program of kube-network-policies. The kernel queues new connections to it by NFQUEUE, and it evaluates them.
const knp = "kube-network-policies"

// apiAddress is that of the API server from which it reads.
var apiAddress = netip.MustParsePrefix("192.168.78.1/24")

// queue names a setup with kube-network-policies.
func (f form) queue(policies int) string {
	return fmt.Sprintf("%s, %s, %s", knp, f.name, count(policies))
}

// queues makes a setup of each form in which kube-network-policies enforces the policies of a world. It has read them from an
// API server, which ends then: nothing changes while it is measured.
func (w *setups) queues(ctx context.Context, of world) (err error) {
	if err := programs.Build(ctx, filepath.Join("test", "beside"), w.dir, knp); err != nil {
		return err
	}
	outside, err := netns.Prepared(filepath.Join(w.dir, fmt.Sprintf("%d-api", len(w.list))))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outside.Close()) }()
	if err := outside.Do(func() error { return errors.Join(netns.Bridge("api"), netns.AddAddresses("api", apiAddress)) }); err != nil {
		return err
	}
	server, err := apiserver.Start(ctx, apiserver.Config{NS: outside, Address: apiAddress.Addr()}, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := of.write(ctx, server); err != nil {
		return err
	}
	kubeconfig, err := server.Kubeconfig()
	if err != nil {
		return err
	}
	for i, f := range forms {
		setup, err := w.filtered(f, f.queue(of.policies))
		if err != nil {
			return err
		}
		if err := setup.uplink(outside, i); err != nil {
			return err
		}
		if err := w.queueTo(ctx, setup, kubeconfig); err != nil {
			return fmt.Errorf("%s: %w", setup.name, err)
		}
	}
	return nil
}

// uplink connects the node to the network of the API server.
func (of *setup) uplink(outside *netns.NS, i int) error {
	address := apiAddress.Addr()
	for range i + 1 {
		address = address.Next()
	}
	if err := netns.Connect(netns.End{NS: outside, Name: fmt.Sprintf("node%d", i), Bridge: "api"}, netns.End{NS: of.node, Name: "api0"}); err != nil {
		return err
	}
	return of.node.Do(func() error { return netns.AddAddresses("api0", netip.PrefixFrom(address, apiAddress.Bits())) })
}

// queueTo starts kube-network-policies on the node, and waits until policy is in force. It is halted except while
// its setup is measured.
func (w *setups) queueTo(ctx context.Context, of *setup, kubeconfig string) error {
	if err := of.node.Do(func() error { return nft(queueLabel) }); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("%d-%s.log", len(w.list), knp)))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(w.dir, knp), "--kubeconfig", kubeconfig, "--hostname-override=node", "--disable-nri",
		"--netfilter-bug-1766-fix=false") // its help excepts kernels since 6.12
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := of.node.Do(cmd.Start); err != nil {
		return err
	}
	of.closers = append(of.closers, func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return err
	})
	for deadline := time.Now().Add(5 * time.Minute); of.reached(closed) || !of.reached(open); time.Sleep(100 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("policy is not in force: %s", text[max(0, len(text)-2000):])
		}
	}
	of.queued = cmd.Process
	return of.queued.Signal(syscall.SIGSTOP)
}

// awake lets the program of a setup run during a measurement, and until it has evaluated all packets.
func (of *setup) awake(measure func(*setup) (figure, error)) (f figure, err error) {
	if of.queued == nil {
		return measure(of)
	}
	if err := of.queued.Signal(syscall.SIGCONT); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, of.drain(), of.queued.Signal(syscall.SIGSTOP)) }()
	return measure(of)
}

// drain waits until no packet waits for the program of a setup.
func (of *setup) drain() error {
	if of.queued == nil {
		return nil
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		waiting, _, err := of.backlog()
		if err != nil || waiting == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d packets wait for %s", waiting, knp)
		}
	}
}

// backlog returns how many packets wait for the program of a setup, and how many the kernel has queued to it so far.
func (of *setup) backlog() (waiting, queued uint64, err error) {
	var text []byte
	if err := of.node.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		return err
	}); err != nil {
		return 0, 0, err
	}
	var number, port, mode, size, dropped, unread uint64
	if _, err := fmt.Sscan(string(text), &number, &port, &waiting, &mode, &size, &dropped, &unread, &queued); err != nil {
		return 0, 0, fmt.Errorf("read the queue %q: %w", text, err)
	}
	return waiting, queued, nil
}

// connect measures TCP_CRR. It fails if kube-network-policies is measured and has not evaluated each connection.
func (of *setup) connect() (figure, error) {
	if of.queued == nil {
		return of.transact(connectsEach, true)
	}
	_, before, err := of.backlog()
	if err != nil {
		return nil, err
	}
	f, err := of.transact(connectsEach, true)
	if err != nil {
		return nil, err
	}
	_, after, err := of.backlog()
	if err == nil && after-before < connectsEach {
		err = fmt.Errorf("%s evaluated %d of %d connections", knp, after-before, connectsEach)
	}
	return f, err
}

// reached reports whether a connection from the client to a port reaches the server, which may refuse it.
func (of *setup) reached(port uint16) (reached bool) {
	_ = of.client.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(serverIPs[0], port).String(), 300*time.Millisecond)
		if reached = err == nil || errors.Is(err, syscall.ECONNREFUSED); err == nil {
			return conn.Close()
		}
		return nil
	})
	return reached
}

// queueLabel sets the label of an accepted connection on its first packet, as kernels without CONFIG_NETFILTER_NETLINK_GLUE_CT
// ignore that of a verdict. The program's bit 100 is nft's 28: they count from different ends.
const queueLabel = `table inet accepted {
	chain postrouting {
		type nat hook postrouting priority srcnat
		ct label set 28
	}
}
`

// write creates the objects of a world in an API server, by several clients at once.
func (w world) write(ctx context.Context, server *apiserver.Server) error {
	all := append(w.podManifests(), w.policyManifests()...)
	const writers = 8
	running, ctx := errgroup.WithContext(ctx)
	for part := range slices.Chunk(all, len(all)/writers+1) {
		running.Go(func() error { return server.Apply(ctx, strings.Join(part, "\n---\n")) })
	}
	return running.Wait()
}

// podManifests are the Node and the pods of a world.
func (w world) podManifests() []string {
	all := []string{"apiVersion: v1\nkind: Node\nmetadata: {name: node}\nstatus: {addresses: [{type: InternalIP, address: " + nodeAddress + "}]}"}
	add := func(name, label, app, node string, ips []netip.Addr) {
		var list []string
		for _, ip := range ips {
			list = append(list, fmt.Sprintf("{ip: %q}", ip))
		}
		all = append(all, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: default, labels: {name: %q, app: %q}}\nspec: {nodeName: %s, containers: [{name: main, image: none}]}\nstatus: {phase: Running, podIP: %q, podIPs: [%s]}",
			name, label, app, node, ips[0], strings.Join(list, ", ")))
	}
	add("client", "client", "client", "node", clientIPs)
	add("server", "server", "server", "node", serverIPs)
	for i := range w.pods {
		add(fmt.Sprintf("pod-%d", i), "other", fmt.Sprint(i), "elsewhere", []netip.Addr{podAddress(i)})
	}
	return all
}

// policyManifests are the policies of a world.
func (w world) policyManifests() (all []string) {
	for _, p := range w.list() {
		rule := p.Rules[w.direction][0]
		from := fmt.Sprintf("{ipBlock: {cidr: %q}}", rule.Peers[0].Block.CIDR)
		if rule.Peers[0].Kind == model.PeerPods {
			label := rule.Peers[0].Pods.Pods.Requirements()[0]
			from = fmt.Sprintf("{podSelector: {matchLabels: {%s: %q}}}", label.Key, label.Values[0])
		}
		var ports []string
		for _, m := range rule.Ports {
			ports = append(ports, fmt.Sprintf("{protocol: %s, port: %d}", m.Protocol, m.First))
		}
		all = append(all, fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: default}\nspec: {podSelector: {matchLabels: {name: server}}, policyTypes: [Ingress], ingress: [{from: [%s], ports: [%s]}]}",
			p.Origin.Name, from, strings.Join(ports, ", ")))
	}
	return all
}
