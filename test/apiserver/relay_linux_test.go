// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"testing"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/kube/review"
)

// reader is a namespace whose service account reads its flows, and one that reads all.
const reader = `
{apiVersion: v1, kind: Namespace, metadata: {name: team}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: flows, namespace: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: isthmus-flows}
subjects: [{kind: ServiceAccount, name: viewer, namespace: team}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flows-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: isthmus-flows-admin}
subjects: [{kind: ServiceAccount, name: chief, namespace: team}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flows-all}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: isthmus-flows}
subjects: [{kind: ServiceAccount, name: analyst, namespace: team}]
`

// The API server decides about tokens and rights, as the shipped roles say. The relay's own account can do nothing
// else. Without an answer access is refused.
func TestRelayAccess(t *testing.T) {
	s := running(t)
	ctx := context.Background()
	if err := s.ApplyFiles(ctx, "../../deploy/rbac/relay.yaml"); err != nil {
		t.Fatal(err)
	}
	apply(t, s, reader)
	api, err := review.New(review.Config{Kubeconfig: account(t, s, "relay", "isthmus-relay"), UserAgent: "isthmus-relay"})
	if err != nil {
		t.Fatal(err)
	}
	checker := access.NewChecker(api, nil)
	user := func(name string) access.User {
		t.Helper()
		token, err := s.token(ctx, "team", name)
		if err != nil {
			t.Fatal(err)
		}
		u, err := checker.User(ctx, token)
		if err != nil || u.Name != "system:serviceaccount:team:"+name {
			t.Fatalf("user of the token of %s: %+v, %v", name, u, err)
		}
		return u
	}
	all := access.Scope{All: true}
	team := access.Scope{Namespaces: []string{"team"}}
	for _, c := range []struct {
		name       string
		namespaces []string
		want       access.Scope
		denied     bool
	}{
		{"viewer", []string{"team"}, team, false},
		{"viewer", nil, access.Scope{}, true},
		{"viewer", []string{"default"}, access.Scope{}, true},
		{"viewer", []string{"team", "kube-system"}, access.Scope{}, true},
		{"stranger", []string{"team"}, access.Scope{}, true},
		{"analyst", nil, all, false},
		{"analyst", []string{"default"}, all, false},
		{"chief", nil, access.Everything, false},
	} {
		u := user(c.name)
		for _, verb := range []string{access.Get, access.Watch} {
			got, err := checker.Scope(ctx, u, verb, c.namespaces)
			denied := (*access.DeniedError)(nil)
			if !got.Equal(c.want) || errors.As(err, &denied) != c.denied || err != nil && !c.denied {
				t.Errorf("%s, %s %v: %+v, %v", c.name, verb, c.namespaces, got, err)
			}
		}
	}
	for _, token := range []string{"", "wrong", "eyJhbGciOiJub25lIn0.e30."} {
		if _, err := checker.User(ctx, token); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	token, err := s.token(ctx, "team", "viewer")
	if err != nil {
		t.Fatal(err)
	}
	other, err := review.New(review.Config{Kubeconfig: account(t, s, "relay"), Audiences: []string{"isthmus-relay"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Authenticate(ctx, token); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("a token for another audience: %v", err)
	}
	refusedDuringOutage(t, s, api, user("viewer"), token)
}

// refusedDuringOutage checks that a relay without kept answers refuses access while no API server runs.
func refusedDuringOutage(t *testing.T, s *Server, api access.Authority, viewer access.User, token string) {
	t.Helper()
	ctx := context.Background()
	if err := s.KillAPI(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.StartAPI(ctx); err != nil {
			t.Error(err)
		}
	})
	fresh := access.NewChecker(api, nil)
	if got, err := fresh.Scope(ctx, viewer, access.Watch, []string{"team"}); err == nil || got.All || len(got.Namespaces) > 0 {
		t.Errorf("without an API server: %+v, %v", got, err)
	}
	if _, err := fresh.User(ctx, token); err == nil || errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("without an API server: %v", err)
	}
}
