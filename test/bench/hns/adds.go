// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// The number of ADDs at the start of a node, and the time that HNS takes for one.
const (
	adds       = 30
	createTime = 300 * time.Millisecond
	attachTime = 200 * time.Millisecond
	network    = "isthmus"
)

// slow delays every call as HNS does. Calls run concurrently.
func slow(op, _ string) error {
	switch op {
	case "CreateEndpoint":
		time.Sleep(createTime)
	case "AttachEndpoint":
		time.Sleep(attachTime)
	}
	return nil
}

// measureAdds returns the time that an agent takes for all ADDs, requested at once. With a pool, it
// first waits until the pool is full.
func measureAdds(parallel int, size pool.Size) (took time.Duration, err error) {
	dir, err := os.MkdirTemp("", "isthmus-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fake := hnstest.NewFake(hns.Server2022)
	c := agent.Defaults()
	c.NodeName, c.RecordDir, c.EndpointPool = self, filepath.Join(dir, "endpoints"), size
	c.Open = func(ctx context.Context, _ model.Node) (dataplane.Backend, error) {
		return windows.New(ctx, windows.Config{Mode: windows.L2Bridge, PodCIDRs: []netip.Prefix{cidrOf(0)}, NodeAddresses: []netip.Addr{nodeAddress(0)},
			NoOutboundNAT: true, Parallel: parallel}, fake, slog.New(slog.DiscardHandler))
	}
	a, err := agent.New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	pods := make([]*model.Pod, adds+1) // the last pod is attached first: the pool learns its DNS settings from it
	for i := range pods {
		pods[i] = &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}, Node: self}
	}
	node := &model.Node{Name: self, OS: model.Windows, PodCIDRs: []netip.Prefix{cidrOf(0)}, Addresses: []netip.Addr{nodeAddress(0)}}
	a.Publish(model.MakeSnapshot(nil, []*model.Node{node}, pods, []*model.Policy{shopPolicy()}))
	for a.Status(ctx, &cniframe.StatusRequest{}) != nil {
		time.Sleep(time.Millisecond)
	}
	add := func(p *model.Pod) error {
		_, err := a.Add(ctx, &cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: p.Name, IfName: "eth0"}, Netns: fake.AddNamespace(),
			PodNamespace: p.Namespace, PodName: p.Name})
		return err
	}
	if size != pool.Off {
		if err := errors.Join(add(pods[adds]), full(ctx, fake, int(size))); err != nil {
			return 0, err
		}
	}
	fake.Before(slow)
	watch := watchOpen(fake)
	defer func() { err = errors.Join(err, watch()) }()
	errs := make([]error, adds)
	var running sync.WaitGroup
	began := time.Now()
	for i, p := range pods[:adds] {
		running.Go(func() { errs[i] = add(p) })
	}
	running.Wait()
	took = time.Since(began)
	return took, errors.Join(append(errs, enforced(ctx, fake))...)
}

// clients may reach the pods at port 80, and the pods may send nothing.
var clients = netip.MustParsePrefix("192.0.2.0/24")

func shopPolicy() *model.Policy {
	return &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSelector{Namespace: "shop"}, Isolates: [2]bool{true, true},
		Rules: [2][]model.Rule{model.Ingress: {{Action: model.ActionAccept,
			Peers: []model.Peer{{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: clients}}}, Ports: tcp(80)}}}}
}

// enforced returns an error unless the policy is in force at the endpoint of every pod.
func enforced(ctx context.Context, fake *hnstest.Fake) error {
	list, err := fake.AllEndpoints(ctx)
	if err != nil {
		return err
	}
	there := 0
	for _, e := range list {
		if e.HostComputeNamespace == "" || !strings.HasSuffix(e.Name, "_"+network) {
			continue
		}
		there++
		rules, err := fake.PortRules(e.ID)
		if err != nil {
			return err
		}
		if !rules.Between(hns.In, netip.Addr{}, clients.Addr().Next(), hns.Reading{}).Decide(uint8(model.TCP), 80, 0).Allow {
			return fmt.Errorf("the ADD of endpoint %s was answered before its policy was in force", e.Name)
		}
	}
	if there < adds {
		return fmt.Errorf("%d endpoints are attached, want at least %d", there, adds)
	}
	return nil
}

// checkShut returns an error if an endpoint lets a packet pass that its policy denies.
func checkShut(fake *hnstest.Fake, e *hns.Endpoint) error {
	rules, err := fake.PortRules(e.ID)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, err)
	}
	client, other := clients.Addr().Next(), netip.MustParseAddr("198.51.100.7")
	for _, p := range []struct {
		d        hns.Direction
		remote   netip.Addr
		protocol model.Protocol
		port     uint16
	}{{hns.In, other, model.TCP, 80}, {hns.In, client, model.TCP, 81}, {hns.In, client, model.UDP, 80}, {hns.In, client, model.ICMP, 0},
		{hns.Out, other, model.TCP, 443}, {hns.Out, client, model.UDP, 53}, {hns.Out, client, model.ICMP, 0}} {
		if rules.Between(p.d, netip.Addr{}, p.remote, hns.Reading{}).Decide(uint8(p.protocol), p.port, 0).Allow {
			return fmt.Errorf("endpoint %s was attached and let %s %s %s/%d pass, which its policy denies", e.Name, p.d, p.remote, p.protocol, p.port)
		}
	}
	return nil
}

// full waits until a pool has its size.
func full(ctx context.Context, fake *hnstest.Fake, size int) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		list, err := fake.AllEndpoints(ctx)
		if err != nil {
			return err
		}
		unused := 0
		for _, e := range list {
			if e.HostComputeNamespace == "" && strings.Contains(e.Name, "prepared-endpoint") {
				unused++
			}
		}
		if unused == size {
			time.Sleep(50 * time.Millisecond) // until the agent has recorded the last ADD
			return nil
		}
	}
	return errors.New("the endpoint pool did not fill")
}

// addFigures compares sequential ADDs, concurrent ADDs, and concurrent ADDs with endpoints from the
// pool.
func addFigures() (all []figure, err error) {
	for _, c := range []struct {
		name     string
		parallel int
		pool     pool.Size
		goal     float64
	}{{"one at a time", 1, pool.Off, 0}, {"four at a time", 4, pool.Off, 4.5}, {"four at a time, from the pool", 4, adds, 2}} {
		took, err := measureAdds(c.parallel, c.pool)
		if err != nil {
			return nil, fmt.Errorf("%d ADDs, %s: %w", adds, c.name, err)
		}
		all = append(all, figure{fmt.Sprintf("%d ADDs at once, %s", adds, c.name), took.Seconds(), "s", c.goal})
	}
	return all, nil
}

// watchOpen reads every attached endpoint continuously. The returned function stops that. It
// returns an error if an endpoint ever let a packet pass that the policy of its pod denies.
func watchOpen(fake *hnstest.Fake) (end func() error) {
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			list, err := fake.AllEndpoints(context.Background())
			for _, e := range list {
				if e.HostComputeNamespace != "" && strings.HasSuffix(e.Name, "_"+network) {
					err = errors.Join(err, checkShut(fake, &e))
				}
			}
			select {
			case <-stop:
				ended <- err
				return
			default:
			}
			if err != nil {
				ended <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return func() error { close(stop); return <-ended }
}
