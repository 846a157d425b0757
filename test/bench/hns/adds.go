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
	"github.com/isthmus-net/isthmus/windows/acl"
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
	a.Publish(model.MakeSnapshot(nil, []*model.Node{node}, pods, nil))
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
	return time.Since(began), errors.Join(errs...)
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
// returns an error if an endpoint was ever without ACLs that decide every packet.
func watchOpen(fake *hnstest.Fake) (end func() error) {
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for looks := 0; ; looks++ {
			list, err := fake.AllEndpoints(context.Background())
			for _, e := range list {
				if acls, aclErr := e.ACLs(); e.HostComputeNamespace != "" && strings.HasSuffix(e.Name, "_"+network) && !acl.WellFormed(acls) {
					err = errors.Join(err, aclErr, fmt.Errorf("endpoint %s was attached without policy", e.Name))
				}
			}
			select {
			case <-stop:
				if looks == 0 && err == nil {
					err = errors.New("the endpoints were not read")
				}
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
