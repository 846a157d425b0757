// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ctl runs isthmusctl as a user does.
func ctl(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(commands(t), "isthmusctl"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// Every command that reads a cluster works on a live API server, for a user with read access only.
func TestControlOnAPIServer(t *testing.T) {
	s := running(t)
	apply(t, s, shop)
	change := filepath.Join(t.TempDir(), "isolate.yaml")
	isolate := `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: isolate, namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress]}}`
	if err := os.WriteFile(change, []byte(isolate), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, kubeconfig := range map[string]string{"administrator": admin(t, s), "viewer": account(t, s, "viewer", "isthmus-view")} {
		for _, c := range []struct {
			args   string
			status int
			says   []string
		}{
			{"explain --from shop/web --to shop/db --port 5432", 0, []string{"NetworkPolicy shop/db", "allow"}},
			{"explain --from 192.0.2.1 --to shop/db --port 5432", 1, []string{"deny"}},
			{"explain --from shop/web --to 169.254.169.254 --port 80", 1, []string{"ClusterNetworkPolicy guard"}},
			{"compile --node n1", 0, []string{"shop/db", "shop/web"}},
			{"compile --node n1 --os windows -o json", 0, []string{`"Type"`}},
			{"matrix", 0, []string{"shop/web", "shop/db"}},
			{"lint", 1, []string{"block-of-pods", "policies=4 constructs=11"}},
			{"verify", 0, []string{"policies=4 ", " differ=0"}},
			{"diff " + change, 1, []string{"NetworkPolicy shop/isolate added (" + change + ":1):", "allow -> deny", "opens=0 "}},
			{"diff " + change + " --only-opened", 0, []string{"not listed: 3 that close flows", "opens=0 closes=3 changes=3"}},
		} {
			status, out, errs := ctl(t, append(strings.Fields(c.args), "--kubeconfig", kubeconfig)...)
			if status != c.status {
				t.Errorf("%s: isthmusctl %s: exit status %d, want %d: %s%s", name, c.args, status, c.status, out, errs)
			}
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("%s: isthmusctl %s: does not say %q: %s%s", name, c.args, want, out, errs)
				}
			}
		}
	}
}

// A user without read access immediately gets an error that names the missing right.
func TestControlForbidden(t *testing.T) {
	s := running(t)
	apply(t, s, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: all-but-policies}
rules:
  - {apiGroups: [""], resources: [namespaces, nodes, pods], verbs: [list, watch]}
  - {apiGroups: [policy.networking.k8s.io], resources: ["*"], verbs: [list, watch]}
`)
	kubeconfig := account(t, s, "blind", "all-but-policies")
	for _, command := range []string{"verify", "lint", "matrix", "compile", "explain --from shop/web --to shop/db --port 1"} {
		began := time.Now()
		status, out, errs := ctl(t, append(strings.Fields(command), "--kubeconfig", kubeconfig)...)
		if status != 2 && status != 1 || out != "" {
			t.Errorf("isthmusctl %s: exit status %d: %s", command, status, out)
		}
		if !strings.Contains(errs, `"networkpolicies"`) || !strings.Contains(errs, "cannot") || strings.Count(errs, "\n") != 1 ||
			!strings.Contains(errs, "list") && !strings.Contains(errs, "watch") {
			t.Errorf("isthmusctl %s: does not name the right: %s", command, errs)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("isthmusctl %s: took %s", command, took)
		}
	}
}

// An API server that does not exist is an immediate error.
func TestControlAway(t *testing.T) {
	s := running(t)
	kubeconfig := account(t, s, "viewer", "isthmus-view")
	if err := s.KillAPI(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.StartAPI(context.Background()); err != nil {
			t.Fatal(err)
		}
	}()
	status, out, errs := ctl(t, "verify", "--kubeconfig", kubeconfig, "--timeout", "5m")
	if status != 2 || out != "" || !strings.Contains(errs, "connection refused") {
		t.Errorf("exit status %d: %s%s", status, out, errs)
	}
}

func admin(t *testing.T, s *Server) string {
	t.Helper()
	path, err := s.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
