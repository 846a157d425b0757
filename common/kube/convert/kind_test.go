// SPDX-License-Identifier: Apache-2.0

package convert

import "testing"

// TestKinds checks the table of kinds: objects of an incomplete kind would be read and then lost.
func TestKinds(t *testing.T) {
	seen := make(map[string]bool)
	for _, k := range Kinds() {
		if seen[k.Name] {
			t.Errorf("%s is in the table twice", k.Name)
		}
		seen[k.Name] = true
		if len(k.Versions) == 0 || k.Read == nil {
			t.Errorf("%s: needs versions and a read function", k.Name)
		}
		if watched := k.Resource != ""; watched != (k.Record != nil) || watched != (k.store != nil) {
			t.Errorf("%s: Resource, record and store belong together", k.Name)
		}
		if (k.Typed == nil) != (k.AddToScheme == nil) {
			t.Errorf("%s: typed and addToScheme belong together", k.Name)
		}
		if k.Policy && k.Put == nil {
			t.Errorf("%s: a policy needs a put function", k.Name)
		}
	}
}

// TestAPIVersions checks the API versions in events. A wrong one hides an event from kubectl describe.
func TestAPIVersions(t *testing.T) {
	for kind, want := range map[string]string{
		"Node": "v1", "Pod": "v1", "NetworkPolicy": "networking.k8s.io/v1",
		"ClusterNetworkPolicy": "policy.networking.k8s.io/v1alpha2", "AdminNetworkPolicy": "policy.networking.k8s.io/v1alpha1",
		"DenyList": "isthmus.dev/v1alpha1", "ServiceCIDR": "networking.k8s.io/v1",
	} {
		k, ok := KindOf(kind)
		if got := k.APIVersion(); !ok || got != want {
			t.Errorf("%s: API version %q, want %q", kind, got, want)
		}
	}
}
