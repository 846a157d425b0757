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
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// The ADDs of a node that starts, and how long HNS takes for one.
const (
	adds       = 30
	createTime = 300 * time.Millisecond
	attachTime = 200 * time.Millisecond
)

// slow lets an HNS take its time. It serves calls side by side.
func slow(op, _ string) error {
	switch op {
	case "CreateEndpoint":
		time.Sleep(createTime)
	case "AttachEndpoint":
		time.Sleep(attachTime)
	}
	return nil
}

// measureAdds returns how long an agent takes for all ADDs at once.
func measureAdds(parallel int) (took time.Duration, err error) {
	dir, err := os.MkdirTemp("", "isthmus-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fake := hnstest.NewFake(hns.Server2022)
	c := agent.Defaults()
	c.NodeName, c.RecordDir = self, filepath.Join(dir, "endpoints")
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
	pods := make([]*model.Pod, adds)
	for i := range pods {
		pods[i] = &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}, Node: self}
	}
	node := &model.Node{Name: self, OS: model.Windows, PodCIDRs: []netip.Prefix{cidrOf(0)}, Addresses: []netip.Addr{nodeAddress(0)}}
	a.Publish(model.MakeSnapshot(nil, []*model.Node{node}, pods, nil))
	for a.Status(ctx, &cniframe.StatusRequest{}) != nil {
		time.Sleep(time.Millisecond)
	}
	fake.Before(slow)
	errs := make([]error, adds)
	var running sync.WaitGroup
	began := time.Now()
	for i, p := range pods {
		running.Go(func() {
			_, errs[i] = a.Add(ctx, &cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: p.Name, IfName: "eth0"}, Netns: fake.AddNamespace(),
				PodNamespace: p.Namespace, PodName: p.Name})
		})
	}
	running.Wait()
	return time.Since(began), errors.Join(errs...)
}

// addFigures compares ADDs one after another with ADDs side by side.
func addFigures() (all []figure, err error) {
	for _, c := range []struct {
		name     string
		parallel int
		goal     float64
	}{{"one at a time", 1, 0}, {"four at a time", 4, 4.5}} {
		took, err := measureAdds(c.parallel)
		if err != nil {
			return nil, fmt.Errorf("%d ADDs, %s: %w", adds, c.name, err)
		}
		all = append(all, figure{fmt.Sprintf("%d ADDs at once, %s", adds, c.name), took.Seconds(), "s", c.goal})
	}
	return all, nil
}
