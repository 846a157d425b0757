// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// The time without changes before the agent counts as idle, and the time of the measurement.
const (
	settleTime = 5 * time.Second
	idleTime   = 20 * time.Second
)

// measureProcess measures the agent's process while nothing changes.
func (b *bench) measureProcess(ctx context.Context) error {
	node := b.cluster.Nodes[0]
	time.Sleep(settleTime)
	before, err := node.CPUTime()
	if err != nil {
		return err
	}
	time.Sleep(idleTime)
	after, err := node.CPUTime()
	if err != nil {
		return err
	}
	memory, err := node.Memory()
	if err != nil {
		return err
	}
	if err := b.put("agent, resident memory", memory["VmRSS"], "MiB", 150); err != nil {
		return err
	}
	if err := b.put("agent, resident memory, peak", memory["VmHWM"], "MiB", 0); err != nil {
		return err
	}
	return b.put("agent, idle CPU", 100*(after-before).Seconds()/idleTime.Seconds(), "% of a core", 1)
}

// measureDelivery measures the time from writing a policy until this process receives a snapshot
// with it.
func (b *bench) measureDelivery(ctx context.Context) error {
	config := watch.DefaultAPIConfig(b.kubeconfig)
	config.Dial = b.server.RESTConfig().Dial
	source, err := watch.NewAPIServer(config, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var latest *model.Snapshot
	arrived := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- source.Run(ctx, func(s *model.Snapshot) {
			mu.Lock()
			latest = s
			mu.Unlock()
			select {
			case arrived <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { cancel(); <-ended }()
	wait := func(ok func(*model.Snapshot) bool) error {
		for deadline := time.After(time.Minute); ; {
			mu.Lock()
			s := latest
			mu.Unlock()
			if s != nil && ok(s) {
				return nil
			}
			select {
			case <-arrived:
			case <-deadline:
				return fmt.Errorf("a policy was not delivered: %q", source.Problems())
			}
		}
	}
	if err := wait(func(s *model.Snapshot) bool { return s.Policies.Len() >= policies && s.Pods.Len() >= pods }); err != nil {
		return err
	}
	var took []time.Duration
	for i := range 100 {
		port := 20_000 + i
		began := time.Now()
		if err := b.setPolicy(ctx, "delivered", object{"podSelector": object{}, "ingress": []any{object{"ports": []any{object{"port": int64(port)}}}}}); err != nil {
			return err
		}
		err := wait(func(s *model.Snapshot) bool {
			p, ok := s.Policies.Get(model.Origin{Kind: "NetworkPolicy", Namespace: namespaceName(0), Name: "delivered"})
			return ok && int(p.Rules[model.Ingress][0].Ports[0].First) == port
		})
		if err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	return b.putTimes("policy written to snapshot delivered", took, 0, 0)
}
