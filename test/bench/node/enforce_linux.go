// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// Addresses of the two pods of the measured node, and the port of the server.
const (
	probeNamespace = "ns-0"
	probePort      = 7000
)

// attach attaches a client and a server, and starts the server.
func (b *bench) attach(ctx context.Context) error {
	for _, name := range []string{"client", "server"} {
		pod := &model.Pod{PodID: model.PodID{Namespace: probeNamespace, Name: name}, Node: b.cluster.Nodes[0].Name,
			Labels: model.MakeLabels(map[string]string{"app": name}), Ports: []model.NamedPort{{Name: "probe", Protocol: model.UDP, Port: probePort}}}
		if err := b.cluster.Manifests.WritePod(pod); err != nil {
			return err
		}
		attached, _, err := b.cluster.Attach(ctx, pod)
		if err != nil {
			return err
		}
		b.pods[name] = attached
	}
	return b.cluster.Serve()
}

// setPolicy creates or replaces a NetworkPolicy of the first namespace.
func (b *bench) setPolicy(ctx context.Context, name string, spec object) error {
	client, err := dynamic.NewForConfig(b.server.RESTConfig())
	if err != nil {
		return err
	}
	at := client.Resource(networkPolicy).Namespace(probeNamespace)
	u := &unstructured.Unstructured{Object: object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": object{"name": name, "namespace": probeNamespace}, "spec": spec}}
	_, err = at.Update(ctx, u, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = at.Create(ctx, u, metav1.CreateOptions{})
	}
	return err
}

// measureEnforcement writes a policy that allows the client's packets, then one that denies them.
// It measures the time from each write to the last packet with the old verdict.
func (b *bench) measureEnforcement(ctx context.Context) error {
	if err := b.server.Delete(ctx, "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: delivered, namespace: ns-0}}"); err != nil {
		return err
	}
	p, err := startProbe(b.pods["client"], b.pods["server"].IPs[0])
	if err != nil {
		return err
	}
	defer p.close()
	server := object{"matchLabels": object{"app": "server"}}
	open := object{"podSelector": server, "ingress": []any{object{"from": []any{object{"podSelector": object{"matchLabels": object{"app": "client"}}}}}}}
	shut := object{"podSelector": server, "ingress": []any{}}
	var took []time.Duration
	for i := range 100 {
		spec, allowed := open, true
		if i%2 == 1 {
			spec, allowed = shut, false
		}
		began := time.Now()
		if err := b.setPolicy(ctx, "switch", spec); err != nil {
			return err
		}
		time.Sleep(400 * time.Millisecond)
		wrong, last := p.lastWrong(began, allowed)
		if last == allowed {
			took = append(took, wrong.Sub(began))
			continue
		}
		return fmt.Errorf("the policy was not in force after %s", time.Since(began))
	}
	return b.putTimes("policy written to last wrong verdict", took, 50, 250)
}

// probe sends packets continuously and records which were answered.
type probe struct {
	conn net.PacketConn
	to   net.Addr
	done chan struct{}
	wait sync.WaitGroup

	mu       sync.Mutex
	sent     []time.Time
	answered []bool
}

// every is the interval between packets.
const every = 500 * time.Microsecond

func startProbe(from *cluster.Pod, to netip.Addr) (*probe, error) {
	p := &probe{to: net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, probePort)), done: make(chan struct{})}
	err := from.NS.Do(func() (err error) {
		p.conn, err = net.ListenPacket("udp4", ":0")
		return err
	})
	if err != nil {
		return nil, err
	}
	p.wait.Go(p.send)
	p.wait.Go(p.receive)
	return p, nil
}

func (p *probe) close() {
	close(p.done)
	p.conn.Close()
	p.wait.Wait()
}

func (p *probe) send() {
	for {
		select {
		case <-p.done:
			return
		case <-time.After(every):
		}
		p.mu.Lock()
		n := len(p.sent)
		p.sent, p.answered = append(p.sent, time.Now()), append(p.answered, false)
		p.mu.Unlock()
		if _, err := p.conn.WriteTo(fmt.Appendf(nil, "%d", n), p.to); err != nil && errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (p *probe) receive() {
	buffer := make([]byte, 64)
	for {
		n, _, err := p.conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var i int
		if _, scanErr := fmt.Sscan(string(buffer[:n]), &i); err != nil || scanErr != nil {
			continue // an ICMP error
		}
		p.mu.Lock()
		if i < len(p.answered) {
			p.answered[i] = true
		}
		p.mu.Unlock()
	}
}

// lastWrong returns the time of the last packet since a given time that had the wrong verdict, or
// the given time if there was none. It also returns the verdict of the newest packet that is old
// enough to have been answered.
func (p *probe) lastWrong(since time.Time, allowed bool) (wrong time.Time, newest bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wrong = since
	young := time.Now().Add(-50 * time.Millisecond)
	for i, at := range p.sent {
		if at.Before(since) || at.After(young) {
			continue
		}
		newest = p.answered[i]
		if p.answered[i] != allowed {
			wrong = at
		}
	}
	return wrong, newest
}
