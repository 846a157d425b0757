// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		text string
	}{
		"nothing":       {[]string{}, "give either --agents or --node"},
		"both":          {[]string{"--agents=unix:///a", "--node=a=unix:///a"}, "give either --agents or --node"},
		"no TLS":        {[]string{"--agents=a:1"}, "agents serve flows over mutual TLS only: give --agent-cert"},
		"node, no TLS":  {[]string{"--node=a=b:1", "--agent-cert=/c"}, "agents serve flows over mutual TLS only"},
		"empty node":    {[]string{"--node=a="}, "--node a=: give NAME=HOST:PORT"},
		"no port":       {[]string{"--node=a=b", "--agent-cert=/c"}, "--node a=b: give NAME=HOST:PORT, or NAME=unix:///PATH"},
		"relative path": {[]string{"--node=a=unix://run/agent.sock"}, "--node a=unix://run/agent.sock: give NAME=HOST:PORT"},
		"large port":    {[]string{"--agents=a:65536", "--agent-cert=/c"}, `--agents "a:65536": give HOST:PORT`},
		"no host":       {[]string{"--agents=:4244", "--agent-cert=/c"}, `--agents ":4244": give HOST:PORT`},
		"listen":        {[]string{"--listen=4245"}, `--listen "4245": give ADDRESS:PORT`},
		"open":          {[]string{"--listen=0.0.0.0:4245", "--agents=unix:///a"}, "--listen 0.0.0.0:4245: other machines read flows over mutual TLS only"},
		"all addresses": {[]string{"--listen=[::]:4245", "--agents=unix:///a"}, "mutual TLS only"},
		"part of TLS":   {[]string{"--tls-cert=/c", "--agents=unix:///a"}, "--tls-cert, --tls-key, --tls-ca: give all three or none"},
		"access":        {[]string{"--access=all", "--agents=unix:///a"}, `--access "all": give transport or token`},
		"token, open":   {[]string{"--access=token", "--listen=0.0.0.0:4245", "--agents=unix:///a"}, "--listen 0.0.0.0:4245: other machines send tokens over TLS only"},
		"token, half":   {[]string{"--access=token", "--tls-cert=/c", "--agents=unix:///a"}, "--tls-cert, --tls-key: give both or none"},
		"token, client": {[]string{"--access=token", "--tls-ca=/c", "--agents=unix:///a"}, "--tls-ca: with --access=token clients need no certificate"},
		"audience":      {[]string{"--token-audience=a", "--agents=unix:///a"}, "--kubeconfig, --token-audience: they need --access=token"},
		"probes":        {[]string{"--http-address=9472", "--agents=unix:///a"}, `--http-address "9472": give ADDRESS:PORT`},
		"page":          {[]string{"--page-address=4246", "--access=token", "--agents=unix:///a"}, `--page-address "4246": give ADDRESS:PORT`},
		"page, access":  {[]string{"--page-address=127.0.0.1:4246", "--agents=unix:///a"}, "--page-address: browsers send tokens: give --access=token"},
		"page, open":    {[]string{"--page-address=0.0.0.0:4246", "--access=token", "--agents=unix:///a"}, "--page-address 0.0.0.0:4246: other machines send tokens over TLS only"},
		"delay":         {[]string{"--shutdown-delay=1h", "--agents=unix:///a"}, "--shutdown-delay 1h0m0s: give 0s to 1m"},
		"level":         {[]string{"--log-level=loud", "--agents=unix:///a"}, `--log-level "loud"`},
		"format":        {[]string{"--log-format=xml", "--agents=unix:///a"}, `--log-format "xml"`},
		"argument":      {[]string{"now"}, `unexpected argument "now"`},
		"flag":          {[]string{"--frobnicate"}, "unknown flag: --frobnicate: see isthmus-relay --help"},
	} {
		var out, errs bytes.Buffer
		if status := run(t.Context(), c.args, &out, &errs); status != 2 || !strings.Contains(errs.String(), c.text) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: exit status %d, %q, want 2 with %q", name, status, errs.String(), c.text)
		}
	}
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"version"}, &out, &errs); status != 0 || !strings.HasPrefix(out.String(), "isthmus-relay devel ") {
		t.Errorf("version: %d, %q", status, out.String())
	}
	files := []string{"--agents=a:1", "--agent-cert=/nonexistent", "--agent-key=/k", "--agent-ca=/c"}
	if status := run(t.Context(), files, &out, &errs); status != 1 || !strings.Contains(errs.String(), "--agent-cert: read certificate files") {
		t.Errorf("files: %d, %q", status, errs.String())
	}
}

// serveAgent serves the flows of an agent, which has none, over mutual TLS until the context ends. It returns the port,
// and a channel for the result.
func serveAgent(t *testing.T, ctx context.Context, authority *hubbletest.Authority) (port uint16, served chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = netip.MustParseAddrPort(listener.Addr().String()).Port()
	snapshot := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}, nil, nil)
	quiet := slog.New(slog.DiscardHandler)
	agent, err := hubble.New(hubble.Config{Node: "n1", History: 100, Port: port, Snapshot: func() *model.Snapshot { return snapshot },
		Source: func() (*observe.Store, error) { return nil, errors.New("no flows here") }}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := hubble.NewIdentity(authority.Write(t.TempDir(), hubble.ServerName, x509.ExtKeyUsageServerAuth), quiet)
	if err != nil {
		t.Fatal(err)
	}
	served = make(chan error, 1)
	go func() {
		served <- agent.Serve(ctx, hubble.Listener{Listener: listener, Credentials: identity.Server(hubble.RelayName)})
	}()
	return port, served
}

// TestRelay runs the relay between an agent with mutual TLS, whose nodes it discovers, and a client on a loopback
// address.
func TestRelay(t *testing.T) {
	authority := hubbletest.NewAuthority(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port, served := serveAgent(t, ctx, authority)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	files := authority.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageClientAuth)
	var out, errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"--listen", address, "--http-address=", "--agents", "127.0.0.1:" + strconv.Itoa(int(port)), "--agent-cert", files.Cert, "--agent-key", files.Key, "--agent-ca", files.CA}, &out, &errs)
	}()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := observer.NewObserverClient(conn)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		s, err := client.ServerStatus(ctx, &observer.ServerStatusRequest{}, grpc.WaitForReady(true))
		if err == nil && s.GetNumConnectedNodes().GetValue() == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %v, %v\n%s", s, err, errs.String())
		}
	}
	stream, err := client.GetFlows(ctx, &observer.GetFlowsRequest{Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		states = append(states, m.GetNodeStatus().GetStateChange().String()+" "+m.GetNodeStatus().GetMessage())
	}
	if want := []string{"NODE_CONNECTED ", "NODE_ERROR no flows here"}; !slices.Equal(states, want) {
		t.Errorf("states %q, want %q", states, want)
	}
	cancel()
	if status := <-ended; status != 0 {
		t.Errorf("exit status %d\n%s", status, errs.String())
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
