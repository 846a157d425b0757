// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	denyPath = "/apis/isthmus.dev/v1alpha1/denylists"
	scanners = `
apiVersion: isthmus.dev/v1alpha1
kind: DenyList
metadata: {name: scanners}
spec: {entries: [192.0.2.7, 198.51.100.0/24, "2001:db8:bad::/48", "2001:db8::7"]}
`
)

func entries(s *model.Snapshot, name string) string {
	l, ok := s.DenyLists.Get(name)
	if !ok {
		return "none"
	}
	return fmt.Sprint(l.Entries)
}

func TestDenyListFromAPIServer(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.Until("db", kubetest.HasPod("db"))
	f.put(t, scanners)
	f.set(func() { f.served[denyPath] = true })
	has := func(want string) func(*model.Snapshot) bool {
		return func(s *model.Snapshot) bool { return entries(s, "scanners") == want }
	}
	w.Until("the list", has("[192.0.2.7/32 198.51.100.0/24 2001:db8::7/128 2001:db8:bad::/48]"))
	w.NoProblems()
	head := `{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: scanners}, spec: {entries: `
	f.put(t, head+`[192.0.2.8, nonsense]}}`)
	w.Until("the good entry", has("[192.0.2.8/32]"))
	w.Problem(`DenyList scanners: spec.entries[1]: "nonsense"`)
	f.put(t, head+`17}}`)
	w.Problem("its last valid version stays in force")
	w.Until("the last good list", has("[192.0.2.8/32]"))
	f.put(t, head+`[192.0.2.9]}}`)
	w.Until("the next list", has("[192.0.2.9/32]"))
	w.NoProblems()
	f.set(func() { delete(f.served, denyPath) })
	w.Until("no list", has("none"))
}

// The definition in deploy/ is that of the kind that the source reads.
func TestDenyListDefinition(t *testing.T) {
	raw, err := os.ReadFile(filepath.FromSlash("../../../deploy/crds/denylists.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Spec struct {
			Group    string
			Scope    string
			Names    struct{ Kind, Plural string }
			Versions []struct {
				Name            string
				Served, Storage bool
			}
		}
	}
	if err := yaml.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	s := d.Spec
	if len(s.Versions) != 1 || !s.Versions[0].Served || !s.Versions[0].Storage || s.Scope != "Cluster" || s.Names.Kind != model.KindDenyList ||
		"/apis/"+s.Group+"/"+s.Versions[0].Name+"/"+s.Names.Plural != denyPath {
		t.Errorf("%+v", s)
	}
}
