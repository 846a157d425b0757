// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// build builds the commands that run beside the agents.
func build(ctx context.Context, root, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/isthmus-relay", "./cmd/isthmus-controller")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	return cmd.Run()
}

// TestRunbooksOfTheRelay breaks a relay, its nodes, its disk and its collector.
func TestRunbooksOfTheRelay(t *testing.T) {
	b := startBroken(t, shop, cluster.Config{Linux: 2})
	one, two := b.cluster.Nodes[0], b.cluster.Nodes[1]
	listen, http := free(t), free(t)
	flows := filepath.Join(t.TempDir(), "flows.json")
	relay := &process{t: t, path: filepath.Join(b.bin, "isthmus-relay"), log: filepath.Join(t.TempDir(), "log"), in: func(f func() error) error { return f() }}
	t.Cleanup(relay.stop)
	start := func(flags ...string) {
		relay.stop()
		args := []string{"--listen", listen, "--http-address", http, "--node", "linux1=unix://" + one.Socket() + ".hubble", "--node", "linux2=unix://" + two.Socket() + ".hubble"}
		relay.start(append(args, flags...)...)
	}
	full := t.TempDir()
	filler := filepath.Join(full, "filler")
	b.must(unix.Mount("tmpfs", full, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { b.must(unix.Unmount(full, unix.MNT_DETACH)) })
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill a file system: %v", err)
	}
	start("--export-file", flows)
	b.operator = newOperator(t, map[string][]string{"isthmus-agent": agents(t, b.cluster), "isthmus-relay": {http}})
	b.repeat(100*time.Millisecond, func() error { return spoof(b.pods["web-linux1"], b.pods["db-linux2"]) }) // flows to export
	for _, c := range []breakage{
		{alert: "IsthmusRelayDown", breaks: func() { start("--export-file", "/nonexistent/flows.json") }, remedy: func() { start("--export-file", flows) }},
		{alert: "IsthmusRelayNodesUnavailable", breaks: func() { b.must(two.Kill()) }, remedy: func() { b.must(two.Start()); b.ready(two) }},
		{alert: "IsthmusRelayBlind", breaks: func() { b.must(one.Kill()); b.must(two.Kill()) }, remedy: func() {
			b.must(one.Start())
			b.must(two.Start())
			b.ready(two)
		}},
		{alert: "IsthmusExportFails", breaks: func() { start("--export-file", filepath.Join(full, "flows.json")) }, remedy: func() { b.must(os.Remove(filler)) }},
		{alert: "IsthmusCollectorMisses", breaks: func() { start("--otlp-endpoint", free(t), "--otlp-insecure", "--otlp-queue", "10") },
			remedy: func() { start("--otlp-endpoint", collector(t), "--otlp-insecure", "--otlp-queue", "10") }},
	} {
		c.log = relay.log
		b.follow(c)
	}
}

// free returns an address with a free port.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// collector starts a collector that accepts every record, and returns its address.
func collector(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		return stream.SendMsg(new(emptypb.Empty))
	}))
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr().String()
}
