// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// repository is the address of commits, releases and documents.
const repository = "https://github.com/isthmus-net/isthmus"

// command is a built command, and the modules that it contains.
type command struct {
	name    string // file name
	digest  string // SHA-256
	target  target
	modules []module
	goVer   string
	licence string // of its own code, as an SPDX expression
}

// bill writes a bill of materials (SPDX 2.3, JSON) of a file that contains commands, whose
// modules have terms, by path@version.
func bill(file, digest, version string, at time.Time, commands []command, licences map[string]terms) ([]byte, error) {
	doc := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      file,
		DocumentNamespace: fmt.Sprintf("%s/releases/download/v%s/%s.spdx.json#%s", repository, version, file, digest),
		CreationInfo: &v2_3.CreationInfo{Created: at.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "Isthmus"}, {CreatorType: "Tool", Creator: "isthmus-release-" + version}}},
	}
	b := &billWriter{doc: doc, known: make(map[common.ElementID]bool), licences: licences}
	whole := []string{"Apache-2.0"}
	top := b.add("artefact-"+file, &v2_3.Package{PackageName: file, PackageVersion: version, PackageFileName: file,
		PackageDownloadLocation: fmt.Sprintf("%s/releases/download/v%s/%s", repository, version, file),
		PackageLicenseDeclared:  "Apache-2.0", PackageChecksums: checksum(digest), PrimaryPackagePurpose: "ARCHIVE"})
	b.relate("DOCUMENT", "DESCRIBES", top)
	for _, c := range commands {
		name := c.target.String() + "/" + c.name
		own := b.add("command-"+name, &v2_3.Package{PackageName: name, PackageVersion: version, PackageFileName: c.name, PackageDownloadLocation: "NOASSERTION",
			PackageLicenseDeclared: c.licence, PackageLicenseConcluded: c.licence, PackageChecksums: checksum(c.digest), PrimaryPackagePurpose: "APPLICATION",
			PackageExternalReferences: purl("github.com/isthmus-net/isthmus", "v"+version)})
		b.relate(top, "CONTAINS", own)
		whole = append(whole, strings.Split(c.licence, " AND ")...)
		std := module{path: "std", version: strings.TrimPrefix(c.goVer, "go")}
		for _, m := range append([]module{std}, c.modules...) {
			b.relate(own, "DEPENDS_ON", b.module(m))
			whole = append(whole, strings.Split(licences[m.key()].concluded, " AND ")...)
		}
	}
	doc.Packages[0].PackageLicenseConcluded = conjunction(whole)
	var w bytes.Buffer
	if err := json.Write(doc, &w, json.Indent(" "), json.EscapeHTML(false)); err != nil {
		return nil, fmt.Errorf("write bill of materials of %s: %w", file, err)
	}
	return w.Bytes(), nil
}

// billWriter adds packages and relationships to a document.
type billWriter struct {
	doc      *v2_3.Document
	known    map[common.ElementID]bool
	licences map[string]terms
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]`)

// add adds a package unless it is there, and returns its identifier.
func (b *billWriter) add(name string, p *v2_3.Package) common.ElementID {
	// Different names of modules may become one identifier without the hash.
	sum := sha256.Sum256([]byte(name))
	id := common.ElementID("Package-" + notInID.ReplaceAllString(name, "-") + "-" + hex.EncodeToString(sum[:4]))
	if b.known[id] {
		return id
	}
	b.known[id] = true
	p.PackageSPDXIdentifier, p.PackageCopyrightText = id, "NOASSERTION"
	b.doc.Packages = append(b.doc.Packages, p)
	return id
}

// module adds a Go module. Go's own library has the name that scanners expect.
func (b *billWriter) module(m module) common.ElementID {
	t := b.licences[m.key()]
	p := &v2_3.Package{PackageName: m.path, PackageVersion: m.version, PackageDownloadLocation: "NOASSERTION", PrimaryPackagePurpose: "LIBRARY",
		PackageLicenseDeclared: t.declared, PackageLicenseConcluded: t.concluded, PackageLicenseComments: t.comment,
		PackageExternalReferences: purl(m.path, m.version)}
	switch {
	case m.path == "std":
		p.PackageName, p.PackageExternalReferences = "stdlib", purl("stdlib", m.version)
	case m.sum != "":
		p.PackageComment = "go.sum: " + m.sum
	}
	return b.add("module-"+m.key(), p)
}

func (b *billWriter) relate(from common.ElementID, how string, to common.ElementID) {
	b.doc.Relationships = append(b.doc.Relationships, &v2_3.Relationship{
		RefA: common.MakeDocElementID("", string(from)), Relationship: how, RefB: common.MakeDocElementID("", string(to))})
}

func checksum(digest string) []common.Checksum {
	return []common.Checksum{{Algorithm: common.SHA256, Value: digest}}
}

func purl(path, version string) []*v2_3.PackageExternalReference {
	return []*v2_3.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: "purl", Locator: "pkg:golang/" + path + "@" + version}}
}
