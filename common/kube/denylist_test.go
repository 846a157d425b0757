// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

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

func TestDenyListEntries(t *testing.T) {
	for _, c := range []struct{ text, taken, problem string }{
		{"192.0.2.7", "192.0.2.7/32", ""},
		{"198.51.100.0/24", "198.51.100.0/24", ""},
		{"2001:DB8::/32", "2001:db8::/32", ""},
		{"198.51.100.9/24", "198.51.100.0/24", "is enforced as 198.51.100.0/24"},
		{"0.0.0.0/0", "", "cut every node off"},
		{"::/0", "", "cut every node off"},
		{"fe80::1", "", "link-local"},
		{"fe80::/9", "", "link-local"},
		{"fe80::1%eth0", "", "without a zone"},
		{"::ffff:192.0.2.7", "", "IPv4 as such"},
		{"::ffff:192.0.2.0/120", "", "write an address"},
		{"192.0.2.0/33", "", "write an address"},
		{"192.0.2", "", "write an address"},
		{"example.com", "", "write an address"},
		{"", "", "write an address"},
	} {
		p, problem := denyEntry(c.text)
		taken := ""
		if p.IsValid() {
			taken = p.String()
		}
		if taken != c.taken || (problem == "") != (c.problem == "") || !strings.Contains(problem, c.problem) {
			t.Errorf("%q: %q %q, want %q %q", c.text, taken, problem, c.taken, c.problem)
		}
	}
}

// A bad entry is named with object, field and remedy; the others count.
func TestDenyListFromManifests(t *testing.T) {
	text := scanners + `---
{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: mixed}, spec: {entries: [192.0.2.300, 203.0.113.0/24]}}
`
	o, warnings, errs := Parse("a.yaml", []byte(text), DefaultLimits())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	s := o.Snapshot()
	if got := entries(s, "scanners"); got != "[192.0.2.7/32 198.51.100.0/24 2001:db8::7/128 2001:db8:bad::/48]" {
		t.Error(got)
	}
	if got := entries(s, "mixed"); got != "[203.0.113.0/24]" {
		t.Error(got)
	}
	want := `a.yaml: document 2 (line 7): DenyList mixed: spec.entries[0]: "192.0.2.300": write an address, or ADDRESS/BITS; the entry is ignored, the others are enforced`
	if len(warnings) != 1 || warnings[0].String() != want {
		t.Errorf("warnings %v, want %s", warnings, want)
	}
	for _, bad := range []string{
		`{apiVersion: isthmus.dev/v1, kind: DenyList, metadata: {name: a}, spec: {entries: []}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: Denylist, metadata: {name: a}, spec: {entries: []}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: AllowList, metadata: {name: a}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: A_B}, spec: {entries: []}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: a}, spec: {entries: 192.0.2.7}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: a}, spec: {entries: [1]}}`,
	} {
		if o, _, errs := Parse("a.yaml", []byte(bad), DefaultLimits()); len(errs) != 1 || len(o.DenyLists) > 0 {
			t.Errorf("%s: %v %v", bad, o.DenyLists, errs)
		}
	}
}

func TestDenyListFromAPIServer(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.until("db", hasPod("db"))
	f.put(t, scanners)
	f.set(func() { f.served[denyPath] = true })
	has := func(want string) func(*model.Snapshot) bool {
		return func(s *model.Snapshot) bool { return entries(s, "scanners") == want }
	}
	w.until("the list", has("[192.0.2.7/32 198.51.100.0/24 2001:db8::7/128 2001:db8:bad::/48]"))
	w.noProblems()
	head := `{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: scanners}, spec: {entries: `
	f.put(t, head+`[192.0.2.8, nonsense]}}`)
	w.until("the good entry", has("[192.0.2.8/32]"))
	w.problem(`DenyList scanners: spec.entries[1]: "nonsense"`)
	f.put(t, head+`17}}`)
	w.problem("its last valid version stays in force")
	w.until("the last good list", has("[192.0.2.8/32]"))
	f.put(t, head+`[192.0.2.9]}}`)
	w.until("the next list", has("[192.0.2.9/32]"))
	w.noProblems()
	f.set(func() { delete(f.served, denyPath) })
	w.until("no list", has("none"))
}

// The definition in deploy/ is of the kind that is read.
func TestDenyListDefinition(t *testing.T) {
	raw, err := os.ReadFile(filepath.FromSlash("../../deploy/crds/denylists.yaml"))
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
