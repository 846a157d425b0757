// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licenseclassifier/v2/assets"
)

// release holds the input and the result of a release.
type release struct {
	source  source
	version string
	out     string
	targets []target
	key     *key // nil: not signed

	progress io.Writer // a line before each step that takes long

	linked   map[string][]linked // modules of each target, by its name
	terms    map[string]terms    // their licences, by path@version
	pages    map[string]entry    // manual pages of isthmusctl, by path in an archive
	commands []command
	files    []subject // artefacts and bills, in the order in which they were made
	modules  int       // different ones
}

// make writes all files of the release.
func (r *release) make(ctx context.Context) error {
	work, err := os.MkdirTemp("", "isthmus-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r.begin("read the licences of all modules")
	if err := r.readLicences(ctx); err != nil {
		return err
	}
	r.begin("build the commands for this machine and write their manual pages")
	if err := r.makePages(ctx, filepath.Join(work, "pages")); err != nil {
		return err
	}
	for _, t := range r.targets {
		r.begin("build for " + t.String())
		if err := r.makeArchive(ctx, t, filepath.Join(work, t.String())); err != nil {
			return err
		}
	}
	r.begin("write the images")
	if err := r.makeImages(ctx, work); err != nil {
		return err
	}
	chart, err := packChart(r.source, r.version, r.out)
	if err != nil {
		return err
	}
	manifests, err := copyManifests(r.source, r.version, r.out)
	if err != nil {
		return err
	}
	for _, name := range append([]string{chart}, manifests...) {
		// They contain no program. The images that they name have a bill of their own.
		if err := r.describe(name, nil); err != nil {
			return err
		}
	}
	r.countModules()
	return r.seal(ctx)
}

// begin reports a step.
func (r *release) begin(step string) { fmt.Fprintln(r.progress, "release:", step) }

// readLicences finds the modules of all targets and their licences, before an hour of building.
func (r *release) readLicences(ctx context.Context) error {
	r.linked = make(map[string][]linked)
	var all []linked
	for _, t := range r.targets {
		list, err := r.source.linkedModules(ctx, t)
		if err != nil {
			return err
		}
		r.linked[t.String()] = list
		all = append(all, list...)
	}
	c, err := assets.DefaultClassifier()
	if err != nil {
		return fmt.Errorf("load texts of licences: %w", err)
	}
	r.terms, err = classify(c, all, exceptions)
	return err
}

// makeArchive builds the commands of a target and packs them with the licences of all that
// they contain.
func (r *release) makeArchive(ctx context.Context, t target, dir string) error {
	if err := r.source.build(ctx, t, r.version, dir); err != nil {
		return err
	}
	list := r.linked[t.String()]
	files := make(map[string]entry)
	own, err := r.readCommands(t, dir, files)
	if err != nil {
		return err
	}
	for _, m := range list {
		for name, content := range m.files {
			files["licences/"+m.path+"/"+name] = entry{content: content}
		}
	}
	notices, err := r.source.notices(list)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, noticesName), notices); err != nil {
		return err
	}
	if err := r.addDocuments(t, files); err != nil {
		return err
	}
	r.commands = append(r.commands, own...)
	top := "isthmus-" + r.version + "-" + t.String()
	name := top + ".tar.gz"
	if t.os == "windows" {
		name = top + ".zip"
	}
	content, err := archive(name, top, files, r.source.time)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(r.out, name), content); err != nil {
		return err
	}
	return r.describe(name, own)
}

// readCommands adds the commands of a target to its archive, and returns what they contain.
func (r *release) readCommands(t target, dir string, files map[string]entry) ([]command, error) {
	var own []command
	for _, pkg := range t.commands {
		name := t.name(pkg)
		list, goVer, err := modules(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if err := sameModules(name, list, r.linked[t.String()]); err != nil {
			return nil, err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		licence, err := r.source.ownLicence(content)
		if err != nil {
			return nil, err
		}
		files[name] = entry{content: content, executable: true}
		own = append(own, command{name: name, digest: digest(content), target: t, modules: list, goVer: goVer, licence: licence})
	}
	return own, nil
}

// documents are files of every archive, and where the checkout has them.
var documents = map[string]string{"LICENSE": "LICENSE", "licences/isthmus-bpf/LICENSE": bpfLicence, "CHANGELOG.md": "docs/CHANGELOG.md"}

// scripts are in the archive for Windows, likewise.
var scripts = map[string]string{"try.ps1": "deploy/windows/try.ps1", "loopback.ps1": "deploy/windows/loopback.ps1"}

// documented are the commands that write manual pages. isthmusctl also writes that of isthmus-cni.
var documented = []string{"cmd/isthmus-agent", "cmd/isthmus-controller", "cmd/isthmus-relay", "cmd/isthmusctl"}

// makePages has the commands, built for this machine, write their manual pages.
func (r *release) makePages(ctx context.Context, dir string) error {
	own := target{runtime.GOOS, runtime.GOARCH, documented}
	if err := r.source.build(ctx, own, r.version, dir); err != nil {
		return err
	}
	pages := filepath.Join(dir, "pages")
	for _, c := range documented {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, own.name(c)), "docs", "--type=man", "--dir="+pages)
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.source.time.Unix()))
		if _, err := output(cmd); err != nil {
			return fmt.Errorf("write manual pages of %s: %w", c, err)
		}
	}
	list, err := os.ReadDir(pages)
	if err != nil {
		return err
	}
	r.pages = make(map[string]entry)
	for _, f := range list {
		content, err := os.ReadFile(filepath.Join(pages, f.Name()))
		if err != nil {
			return err
		}
		r.pages["man/man"+strings.TrimPrefix(filepath.Ext(f.Name()), ".")+"/"+f.Name()] = entry{content: content}
	}
	return nil
}

// addDocuments adds the documents of the checkout to an archive.
func (r *release) addDocuments(t target, files map[string]entry) error {
	all := maps.Clone(documents)
	if t.os == "windows" {
		maps.Copy(all, scripts)
	} else {
		maps.Copy(files, r.pages)
	}
	for name, path := range all {
		content, err := os.ReadFile(filepath.Join(r.source.dir, path))
		if err != nil {
			return fmt.Errorf("read document: %w", err)
		}
		files[name] = entry{content: content}
	}
	return nil
}

// makeImages writes the index of images as an OCI archive, and a list of digests.
func (r *release) makeImages(ctx context.Context, bin string) error {
	out := filepath.Join(bin, "images")
	builder := filepath.Join(bin, "image-builder")
	cmd := r.source.goCommand(ctx, nil, "build", "-trimpath", "-buildvcs=false", "-o", builder, ".")
	cmd.Dir = filepath.Join(r.source.dir, "deploy/images")
	if _, err := output(cmd); err != nil {
		return err
	}
	cmd = r.source.goCommand(ctx, nil)
	cmd.Path, cmd.Args = builder, []string{builder, "-version", r.version, "-bin", bin, "-o", out}
	digests, err := output(cmd)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(out, "isthmus-index.tar"))
	if err != nil {
		return fmt.Errorf("read images: %w", err)
	}
	name := "isthmus-" + r.version + "-images.tar"
	if err := writeFile(filepath.Join(r.out, name), content); err != nil {
		return err
	}
	if err := r.describe(name, r.commands); err != nil {
		return err
	}
	list := "isthmus-" + r.version + "-images.txt"
	var lines strings.Builder
	for line := range strings.Lines(digests) {
		// The archives of single platforms are not a part of a release.
		file, rest, _ := strings.Cut(line, " ")
		platform := strings.TrimSuffix(strings.TrimPrefix(file, "isthmus-"), ".tar")
		fmt.Fprintf(&lines, "%s %s", platform, rest)
	}
	if err := writeFile(filepath.Join(r.out, list), []byte(lines.String())); err != nil {
		return err
	}
	return r.record(list)
}

// describe records an artefact and writes its bill of materials.
func (r *release) describe(name string, commands []command) error {
	if err := r.record(name); err != nil {
		return err
	}
	content, err := bill(name, r.files[len(r.files)-1].Digest["sha256"], r.version, r.source.time, commands, r.terms)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(r.out, name+".spdx.json"), content); err != nil {
		return err
	}
	return r.record(name + ".spdx.json")
}

// record notes the digest of a file that was written.
func (r *release) record(name string) error {
	content, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	r.files = append(r.files, subject{Name: name, Digest: map[string]string{"sha256": digest(content)}})
	return nil
}

// seal writes provenance, checksums and, with a key, their signatures.
func (r *release) seal(ctx context.Context) error {
	statement, err := provenance(r.source, r.version, r.files)
	if err != nil {
		return err
	}
	name := "isthmus-" + r.version + ".provenance.json"
	if err := writeFile(filepath.Join(r.out, name), statement); err != nil {
		return err
	}
	listed := append(slices.Clone(r.files), subject{Name: name, Digest: map[string]string{"sha256": digest(statement)}})
	slices.SortFunc(listed, func(a, b subject) int { return strings.Compare(a.Name, b.Name) })
	var sums bytes.Buffer
	for _, f := range listed {
		fmt.Fprintf(&sums, "%s  %s\n", f.Digest["sha256"], f.Name)
	}
	if err := writeFile(filepath.Join(r.out, mark), sums.Bytes()); err != nil {
		return err
	}
	if r.key == nil {
		return nil
	}
	envelope, err := r.key.envelope(ctx, statement)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(r.out, "isthmus-"+r.version+".intoto.jsonl"), envelope); err != nil {
		return err
	}
	signature, err := r.key.detached(ctx, sums.Bytes())
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.out, mark+".sig"), signature)
}

// countModules counts the different modules of all commands.
func (r *release) countModules() {
	all := make(map[string]bool)
	for _, c := range r.commands {
		for _, m := range c.modules {
			all[m.path+"@"+m.version] = true
		}
	}
	r.modules = len(all)
}

// summary is the last line that the program prints.
func (r *release) summary() string {
	signed := "not signed: no key was given (make release SIGNING_KEY=file)"
	if r.key != nil {
		id, _ := r.key.KeyID()
		signed = "signed by key " + id
	}
	return fmt.Sprintf("release: version=%s commit=%.12s files=%d commands=%d modules=%d; %s", r.version, r.source.commit, len(r.files)+2, len(r.commands), r.modules, signed)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
