// SPDX-License-Identifier: Apache-2.0

package hubble_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

var log = slog.New(slog.DiscardHandler)

func identity(t *testing.T, f hubble.Files) *hubble.Identity {
	t.Helper()
	i, err := hubble.NewIdentity(f, log)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// status calls a server once.
func status(t *testing.T, address string, c credentials.TransportCredentials) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
	return err
}

// TestMutualTLS checks who may read, and that replaced certificates count without a restart.
func TestMutualTLS(t *testing.T) {
	ours, other := hubbletest.NewAuthority(t), hubbletest.NewAuthority(t)
	agentFiles := ours.Write(t.TempDir(), hubble.ServerName, x509.ExtKeyUsageServerAuth)
	relayFiles := ours.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageClientAuth)
	server, err := hubble.New(hubble.Config{Node: "n1", History: 100, Snapshot: func() *model.Snapshot { return nil },
		Source: func() (*observe.Store, error) { return nil, errors.New("none") }}, log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(ctx, hubble.Listener{Listener: l, Credentials: identity(t, agentFiles).Server(hubble.RelayName)})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	relay := identity(t, relayFiles)
	if err := status(t, l.Addr().String(), relay.Client(hubble.ServerName)); err != nil {
		t.Errorf("the relay: %v", err)
	}
	client := func(f hubble.Files) credentials.TransportCredentials { return identity(t, f).Client(hubble.ServerName) }
	for name, c := range map[string]credentials.TransportCredentials{
		"no TLS":               insecure.NewCredentials(),
		"no certificate":       credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
		"another name":         client(ours.Write(t.TempDir(), "web.example.com", x509.ExtKeyUsageClientAuth)),
		"another use":          client(ours.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageServerAuth)),
		"another authority":    client(other.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageClientAuth)),
		"an agent":             client(agentFiles),
		"another server name":  relay.Client("other.example.com"),
		"an unexpected server": credentials.NewTLS(&tls.Config{ServerName: hubble.ServerName}),
	} {
		if err := status(t, l.Addr().String(), c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	// A broken file changes nothing; then both sides move to the other authority.
	if err := os.WriteFile(agentFiles.Cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := status(t, l.Addr().String(), relay.Client(hubble.ServerName)); err != nil {
		t.Errorf("with a broken certificate file: %v", err)
	}
	for _, w := range []struct {
		files hubble.Files
		name  string
		use   x509.ExtKeyUsage
	}{{agentFiles, hubble.ServerName, x509.ExtKeyUsageServerAuth}, {relayFiles, hubble.RelayName, x509.ExtKeyUsageClientAuth}} {
		other.Write(filepath.Dir(w.files.Cert), w.name, w.use)
	}
	if err := status(t, l.Addr().String(), relay.Client(hubble.ServerName)); err != nil {
		t.Errorf("with new certificates: %v", err)
	}
	if err := status(t, l.Addr().String(), client(ours.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageClientAuth))); err == nil {
		t.Error("a certificate of the old authority is still accepted")
	}
}

func TestIdentityErrors(t *testing.T) {
	a := hubbletest.NewAuthority(t)
	for want, edit := range map[string]func(*hubble.Files){
		" /nonexistent: ":           func(f *hubble.Files) { f.Key = "/nonexistent" },
		"has no certificate in PEM": func(f *hubble.Files) { f.CA = f.Key },
		"read certificate ":         func(f *hubble.Files) { f.Cert = f.Key },
		"ca.crt and key":            func(f *hubble.Files) { f.Cert = f.CA },
	} {
		f := a.Write(t.TempDir(), "x", x509.ExtKeyUsageServerAuth)
		edit(&f)
		if _, err := hubble.NewIdentity(f, log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
