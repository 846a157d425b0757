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
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
)

// attached is the number of pods that are attached and measured.
const attached = 60

// measureAttachment attaches pods to a real backend while the policies of the
// whole cluster are in force.
func measureAttachment() (figures []figure, err error) {
	dir, err := os.MkdirTemp("", "isthmus-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bpffs := filepath.Join(dir, "bpf")
	if err := errors.Join(os.Mkdir(bpffs, 0o700), unix.Mount("bpf", bpffs, "bpf", 0, "")); err != nil {
		return nil, fmt.Errorf("mount a bpffs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(bpffs, unix.MNT_DETACH)) }()
	host, err := netns.New(filepath.Join(dir, "node"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	var all []*netns.NS
	defer func() {
		for _, ns := range all {
			err = errors.Join(err, ns.Close())
		}
	}()
	for i := range attached {
		ns, err := netns.New(filepath.Join(dir, fmt.Sprintf("pod-%d", i)))
		if err != nil {
			return nil, err
		}
		all = append(all, ns)
	}
	if err := uplink(host); err != nil {
		return nil, err
	}
	err = host.Do(func() error {
		figures, err = attachAll(bpffs, all)
		return err
	})
	return figures, err
}

// uplink makes an interface with the node's addresses that is connected to nothing.
func uplink(node *netns.NS) error {
	if err := netns.Connect(netns.End{NS: node, Name: "eth0"}, netns.End{NS: node, Name: "far"}); err != nil {
		return err
	}
	return node.Do(func() error {
		return errors.Join(netns.AddAddresses("eth0", netip.MustParsePrefix("192.168.9.1/24"), netip.MustParsePrefix("fd99::1/64")), netns.Up("far"))
	})
}

func attachAll(bpffs string, all []*netns.NS) (figures []figure, err error) {
	ctx := context.Background()
	cfg := linux.Defaults()
	cfg.BPFFS, cfg.Uplink = bpffs, "eth0"
	b, err := linux.New(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	// The tables of the node's other pods are in force. The measured pods are attached one by one:
	// half are replicas, half have a table that no other pod has.
	snapshot, endpoints := cluster()
	compiler := compile.New()
	late := func(i int) *model.Pod { return newPod((i + i%2*touched) * nodes) }
	for i := range all {
		id, _ := endpointOf(late(i))
		delete(endpoints, id)
	}
	put := func() error {
		state, _ := compiler.Compile(compile.Input{Snapshot: snapshot, Node: "node-0", Endpoints: endpoints})
		_, err := b.Apply(ctx, state)
		return err
	}
	if err := put(); err != nil {
		return nil, err
	}
	steps := map[string][]time.Duration{}
	for i, ns := range all {
		p := late(i)
		id, e := endpointOf(p)
		began := time.Now()
		if _, err := b.AddEndpoint(ctx, dataplane.EndpointSpec{ID: id, ContainerID: p.Name, IfName: "eth0", Pod: p.PodID, NetNS: ns.Path(), IPs: p.IPs}); err != nil {
			return nil, err
		}
		made := time.Now()
		endpoints[id] = e
		if err := put(); err != nil {
			return nil, err
		}
		kind := [2]string{"a replica", "a pod with a Table of its own"}[i%2]
		steps["AddEndpoint"] = append(steps["AddEndpoint"], made.Sub(began))
		steps["compile and Apply, "+kind] = append(steps["compile and Apply, "+kind], time.Since(made))
		steps["all"] = append(steps["all"], time.Since(began))
	}
	for _, f := range []struct {
		name string
		goal float64
	}{{"AddEndpoint", 0}, {"compile and Apply, a replica", 0}, {"compile and Apply, a pod with a Table of its own", 0}, {"all", 3}} {
		took := steps[f.name]
		slices.Sort(took)
		figures = append(figures, figure{"attach a pod, " + f.name, millis(took[len(took)/2]), "ms", f.goal},
			figure{"attach a pod, " + f.name + ", least", millis(took[0]), "ms", 0})
	}
	return figures, nil
}
