// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// The tests share one server, as it takes seconds to start.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// built holds the commands of Isthmus.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	// The time until a client detects that a server does not answer on an open connection: 45 s by default.
	os.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	os.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the API server:", err)
			code = 1
		}
	}
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// running returns the shared server.
func running(t *testing.T) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs kube-apiserver and no -short: make test-api builds it and runs this")
	}
	shared.once.Do(func() {
		began := time.Now()
		shared.server, shared.err = Start(context.Background(), Config{}, os.Stderr)
		fmt.Fprintf(os.Stderr, "apiserver: ready after %.1f s\n", time.Since(began).Seconds())
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// apply applies manifests and deletes them when the test ends.
func apply(t *testing.T, s *Server, manifests string) {
	t.Helper()
	if err := s.Apply(context.Background(), manifests); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), manifests); err != nil {
			t.Error(err)
		}
	})
}

// account makes a service account with cluster roles, and returns its
// kubeconfig file.
func account(t *testing.T, s *Server, name string, roles ...string) string {
	t.Helper()
	ctx := context.Background()
	path, err := s.ServiceAccount(ctx, "isthmus-system", name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyFiles(ctx, "../../deploy/rbac/agent.yaml", "../../deploy/rbac/view.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		apply(t, s, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-%[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]s}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: isthmus-system}]
`, name, role))
	}
	return path
}
