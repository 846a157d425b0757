// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

// readBill reads a bill of materials, and checks that every relationship is between elements
// that are there.
func readBill(t *testing.T, content []byte) *v2_3.Document {
	t.Helper()
	var doc v2_3.Document
	if err := json.ReadInto(bytes.NewReader(content), &doc); err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(&doc); err != nil {
		t.Error(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DocumentNamespace == "" || doc.CreationInfo.Created != "2026-11-01T10:00:00Z" {
		t.Errorf("%s, namespace %s, created %s", doc.SPDXVersion, doc.DocumentNamespace, doc.CreationInfo.Created)
	}
	return &doc
}

// listedModules returns the modules of a bill, without Go's own library.
func listedModules(doc *v2_3.Document) []string {
	var all []string
	for _, p := range doc.Packages {
		if p.PrimaryPackagePurpose == "LIBRARY" && p.PackageName != "stdlib" {
			all = append(all, p.PackageName+"@"+p.PackageVersion)
		}
	}
	slices.Sort(all)
	return all
}

// checkBills checks that every artefact has a bill, which names it by its digest, and that
// those of archives list what "go version -m" lists for the binaries in them.
func checkBills(t *testing.T, dir string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	bills := 0
	for _, path := range list {
		name := filepath.Base(path)
		if !slices.Contains(list, path+".spdx.json") {
			if !strings.HasSuffix(name, ".spdx.json") && name != mark && !strings.Contains(name, "provenance") && !strings.HasSuffix(name, "-images.txt") {
				t.Errorf("%s has no bill of materials", name)
			}
			continue
		}
		bills++
		doc := readBill(t, read(t, path+".spdx.json"))
		if p := doc.Packages[0]; p.PackageName != name || p.PackageChecksums[0].Value != digest(read(t, path)) {
			t.Errorf("the bill of %s is about %s %v", name, p.PackageName, p.PackageChecksums)
		}
		var want []string
		if strings.HasSuffix(name, "-images.tar") {
			want = []string{"github.com/spf13/pflag@v1.0.10"}
		} else if strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".zip") {
			for file, content := range unpack(t, path) {
				if base := filepath.Base(file); !strings.HasPrefix(base, "isthmus") || filepath.Ext(base) == ".1" || filepath.Ext(base) == ".8" {
					continue
				}
				binary := filepath.Join(t.TempDir(), "binary")
				if err := os.WriteFile(binary, content, 0o755); err != nil {
					t.Fatal(err)
				}
				want = append(want, modulesOf(t, binary)...)
			}
			slices.Sort(want)
			want = slices.Compact(want)
			if len(want) == 0 {
				t.Errorf("%s: no modules in the binaries", name)
			}
		}
		checkLicences(t, name, doc)
		if got := listedModules(doc); !slices.Equal(got, want) {
			t.Errorf("the bill of %s lists %q, want %q", name, got, want)
		}
	}
	if bills != 8 {
		t.Errorf("%d bills of materials, want 8", bills)
	}
}

// checkLicences checks the licences of a bill of the small checkout: pflag and Go's library
// have one, every package has both expressions, and the whole has all of them.
func checkLicences(t *testing.T, name string, doc *v2_3.Document) {
	t.Helper()
	want := "Apache-2.0"
	for _, p := range doc.Packages[1:] {
		licence := "Apache-2.0"
		if p.PrimaryPackagePurpose == "LIBRARY" {
			licence, want = "BSD-3-Clause", "Apache-2.0 AND BSD-3-Clause"
			if !strings.HasPrefix(p.PackageLicenseComments, "from LICENSE") {
				t.Errorf("%s: the licence of %s is %q", name, p.PackageName, p.PackageLicenseComments)
			}
		}
		if p.PackageLicenseDeclared != licence || p.PackageLicenseConcluded != licence {
			t.Errorf("%s: the licence of %s is declared as %q, concluded as %q, want %q", name, p.PackageName, p.PackageLicenseDeclared, p.PackageLicenseConcluded, licence)
		}
	}
	if p := doc.Packages[0]; p.PackageLicenseDeclared != "Apache-2.0" || p.PackageLicenseConcluded != want {
		t.Errorf("%s is declared as %q, concluded as %q, want %q", name, p.PackageLicenseDeclared, p.PackageLicenseConcluded, want)
	}
}

// TestBill checks what each command depends on: a module of two commands is one package, and
// two versions of a module, or names that differ in signs only, are two.
func TestBill(t *testing.T) {
	a, b := module{"example.org/a", "v1.0.0", "h1:x="}, module{"example.org/a", "v1.1.0", ""}
	c := module{"example.org_a", "v1.0.0", ""}
	linux := target{os: "linux", arch: "amd64"}
	content, err := bill("x.tar.gz", "00", "0.2.0", time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC), []command{
		{"one", "01", linux, []module{a, c}, "go1.26.8", "Apache-2.0"}, {"two", "02", linux, []module{a, b}, "go1.26.8", "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"}},
		map[string]terms{"std@1.26.8": {"BSD-3-Clause", "BSD-3-Clause", ""}, a.key(): {"MIT", "ISC AND MIT", "from x"}, b.key(): {unknown, unknown, "a reason"}, c.key(): {"MIT", "MIT", ""}})
	if err != nil {
		t.Fatal(err)
	}
	doc := readBill(t, content)
	if want := []string{"example.org/a@v1.0.0", "example.org/a@v1.1.0", "example.org_a@v1.0.0"}; !slices.Equal(listedModules(doc), want) {
		t.Errorf("modules %q, want %q", listedModules(doc), want)
	}
	depends := make(map[string]int)
	for _, r := range doc.Relationships {
		depends[r.Relationship]++
	}
	if depends["DESCRIBES"] != 1 || depends["CONTAINS"] != 2 || depends["DEPENDS_ON"] != 6 {
		t.Errorf("relationships %v", depends)
	}
	if got := doc.Packages[0].PackageLicenseConcluded; got != unknown {
		t.Errorf("concluded licence of the whole is %q, although one is unknown", got)
	}
	for _, want := range []string{`"licenseConcluded": "ISC AND MIT"`, `"licenseDeclared": "NOASSERTION"`, `"licenseComments": "a reason"`, `"pkg:golang/example.org/a@v1.1.0"`, `"pkg:golang/stdlib@1.26.8"`, `"go.sum: h1:x="`} {
		if !strings.Contains(string(content), want) {
			t.Errorf("no %s in\n%s", want, content)
		}
	}
}
