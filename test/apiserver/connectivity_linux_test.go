// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/kube/testpods"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// connectivityRole returns the role that the documents describe.
func connectivityRole(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operate/connectivity.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	role, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/operate/connectivity.md has no role")
	}
	return role
}

// connectivityObjects returns manifests that name all objects of a test.
func connectivityObjects(namespace string, pods []connectivity.Pod) string {
	var all strings.Builder
	add := func(api, kind, name string) {
		fmt.Fprintf(&all, "---\n{apiVersion: %s, kind: %s, metadata: {name: %s, namespace: %s}}\n", api, kind, name, namespace)
	}
	for _, p := range pods {
		add("v1", "Pod", p.Name)
		add("v1", "Service", p.Name)
	}
	for _, phase := range connectivity.Phases() {
		for _, p := range phase.Policies {
			add("networking.k8s.io/v1", "NetworkPolicy", p.Name)
		}
	}
	fmt.Fprintf(&all, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", namespace)
	return all.String()
}

// The objects of isthmusctl connectivity are valid for both systems and conform to the standard restricted, which the API server
// enforces. The role in the documents is enough, and less is named as a missing right.
func TestConnectivityObjects(t *testing.T) {
	s := running(t)
	ctx := context.Background()
	apply(t, s, connectivityRole(t))
	open := func(kubeconfig string) *testpods.Cluster {
		cfg := watch.DefaultAPIConfig(kubeconfig)
		cfg.UserAgent = "test"
		c, err := testpods.New(cfg)
		must(t, err)
		return c
	}
	namespace := "isthmus-connectivity-test"
	pods := connectivity.Pods([]connectivity.Node{{Name: "l1", OS: model.Linux, Image: "isthmus:1"}, {Name: "w1", OS: model.Windows, Image: "probe:1"}})
	t.Cleanup(func() { must(t, s.Delete(ctx, connectivityObjects(namespace, pods))) }) // no controller removes what a namespace holds
	blind := open(account(t, s, "blind-tester", "isthmus-view"))
	if err := blind.Create(ctx, connectivity.Tenancy{Namespace: namespace}); !errors.Is(err, connectivity.ErrRefused) || !strings.Contains(err.Error(), "cannot create resource") {
		t.Errorf("without the right: %v", err)
	}
	c := open(account(t, s, "tester", "isthmus-connectivity"))
	if _, err := c.Candidates(ctx, ""); err != nil {
		t.Error(err)
	}
	must(t, c.Create(ctx, connectivity.Tenancy{Namespace: namespace, Beat: "0", Kept: true}))
	must(t, c.Touch(ctx, connectivity.Tenancy{Namespace: namespace, Beat: "1"}))
	all, err := c.Tenancies(ctx)
	must(t, err)
	if len(all) != 1 || all[0] != (connectivity.Tenancy{Namespace: namespace, Beat: "1", Kept: true}) {
		t.Errorf("namespaces %+v", all)
	}
	for range 2 { // it may be repeated
		services, err := c.Start(ctx, namespace, pods)
		must(t, err)
		if len(services) != 2 || len(services["server-1"]) != 2 || services["server-1"][0].Is4() == services["server-1"][1].Is4() {
			t.Errorf("Services have the addresses %v, want both families", services)
		}
	}
	states, err := c.States(ctx, namespace)
	must(t, err)
	if len(states) != 4 || states["client-2"].Running || states["client-2"].Waits != "the pod is Pending" {
		t.Errorf("states %+v", states)
	}
	for _, p := range connectivity.Phases() {
		must(t, c.Enforce(ctx, namespace, p.Policies))
		must(t, c.Enforce(ctx, namespace, p.Policies))
		for _, policy := range p.Policies {
			if _, err := s.Get(ctx, "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: "+policy.Name+", namespace: "+namespace+"}}"); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
	}
	if err := c.Remove(ctx, "default"); err == nil || !strings.Contains(err.Error(), "it is not one of a connectivity test") {
		t.Errorf("remove another namespace: %v", err)
	}
	must(t, c.Remove(ctx, namespace))
	must(t, c.Remove(ctx, namespace))
	must(t, c.Remove(ctx, "isthmus-connectivity-none"))
	if all, err := c.Tenancies(ctx); err != nil || len(all) != 0 {
		t.Errorf("left %+v, %v", all, err)
	}
}
