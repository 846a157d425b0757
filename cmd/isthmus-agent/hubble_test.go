// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
)

// TestHubble reads flows of an agent on its socket and, with a certificate, on its port. The data
// path of this test reports no flows, and the stream reports that.
func TestHubble(t *testing.T) {
	m := newMachine(t, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	authority := hubbletest.NewAuthority(t)
	files := authority.Write(t.TempDir(), hubble.ServerName, x509.ExtKeyUsageServerAuth)
	m.extraArgs = []string{"--hubble-listen", address, "--hubble-cert", files.Cert, "--hubble-key", files.Key, "--hubble-ca", files.CA, "--hubble-history=64"}
	m.start(0)
	if _, err := m.add(0); err != nil {
		t.Fatalf("%v\n%s", err, m.log.String())
	}
	relay, err := hubble.NewIdentity(authority.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageClientAuth), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	dial := func(target string, c credentials.TransportCredentials) *grpc.ClientConn {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(c))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	path := socket.Hubble(m.socket())
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	for name, conn := range map[string]*grpc.ClientConn{"socket": dial("unix://"+path, insecure.NewCredentials()), "port": dial(address, relay.Client(hubble.ServerName))} {
		ctx := context.Background()
		client := observer.NewObserverClient(conn)
		if s, err := client.ServerStatus(ctx, &observer.ServerStatusRequest{}); err != nil || s.GetMaxFlows() != 64 {
			t.Errorf("%s: %v, %v", name, s, err)
		}
		// Until the data path is open, that is the reason.
		const why = "does not report single flows"
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			got, err := firstFlow(ctx, client)
			if strings.Contains(got.GetNodeStatus().GetMessage(), why) {
				break
			}
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s: %v, %v, want %q", name, got, err, why)
			}
		}
		checkExplainer(t, name, conn)
		peers, err := peer.NewPeerClient(conn).Notify(ctx, &peer.NotifyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := peers.Recv(); err != nil || got.GetName() != "node1" {
			t.Errorf("%s: peer %v, %v", name, got, err)
		}
	}
	if err := m.stop(); err != nil {
		t.Errorf("agent ended with %v\n%s", err, m.log.String())
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left")
	}
}

// checkExplainer asks for objects and for an explanation.
func checkExplainer(t *testing.T, name string, conn *grpc.ClientConn) {
	t.Helper()
	client := isthmusv1.NewExplainClient(conn)
	objects, err := client.GetCluster(t.Context(), &isthmusv1.GetClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := objects.Recv(); err != nil || got.GetVersion() == "" {
		t.Errorf("%s: objects %v, %v", name, got, err)
	}
	x, err := client.ExplainFlow(t.Context(), &isthmusv1.ExplainFlowRequest{Src: "203.0.113.1", Dst: "10.0.1.2", Protocol: 6, Port: 80})
	if err != nil || !strings.Contains(string(x.GetReport()), `"to":{"address":"10.0.1.2","unknown_pod":true}`) {
		t.Errorf("%s: explanation %s, %v", name, x.GetReport(), err)
	}
}

// firstFlow returns the first answer to a request for flows.
func firstFlow(ctx context.Context, client observer.ObserverClient) (*observer.GetFlowsResponse, error) {
	stream, err := client.GetFlows(ctx, &observer.GetFlowsRequest{Number: 20})
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}
