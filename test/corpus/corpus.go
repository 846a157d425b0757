// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// The files of golden sections: compiled forms of the last step. They contain no internal numbers,
// so that they can be reviewed.
const (
	GoldenTables = "golden/tables"
	GoldenMaps   = "golden/maps"
	GoldenACLs   = "golden/acls"
)

// Case is one file.
type Case struct {
	Name    string
	Comment string
	Steps   []Step
	Archive *txtar.Archive
	// Stored is true for objects that an API server has stored already.
	Stored bool
}

// Step is a cluster and the expected verdicts in it.
type Step struct {
	Snapshot *model.Snapshot
	Flows    []Flow
	// Documents are the objects of the step, one YAML document each.
	Documents []string
}

// Flow is a flow and its expected verdict.
type Flow struct {
	Text string // the line of the file
	model.Flow
	Want model.Verdict
}

// files are the cases, for programs that run outside the repository.
//
//go:embed *.txtar default.yaml
var files embed.FS

// Embedded returns the cases as of the build of the program. It reads them once. Callers do not change them.
var Embedded = sync.OnceValues(func() ([]Case, error) { return load(files) })

// Load reads every case of a directory, in order of their names.
func Load(dir string) ([]Case, error) { return load(os.DirFS(dir)) }

func load(dir fs.FS) ([]Case, error) {
	names, err := fs.Glob(dir, "*.txtar")
	if err != nil {
		return nil, err
	}
	fallback, err := fs.ReadFile(dir, "default.yaml")
	if err != nil {
		return nil, err
	}
	var all []Case
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		c, err := parse(strings.TrimSuffix(name, ".txtar"), txtar.Parse(text), fallback)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// parse builds the steps of a case. Each step adds to the previous one.
func parse(name string, a *txtar.Archive, fallback []byte) (Case, error) {
	c := Case{Name: name, Comment: strings.TrimSpace(string(a.Comment)), Archive: a}
	if c.Comment == "" {
		return c, fmt.Errorf("has no comment that says what it shows")
	}
	files := make(map[string][]byte)
	for _, f := range a.Files {
		if _, twice := files[f.Name]; twice {
			return c, fmt.Errorf("has two files %s", f.Name)
		}
		if !known(f.Name) {
			return c, fmt.Errorf("has an unknown file %s: see doc.go for the names", f.Name)
		}
		files[f.Name] = f.Data
	}
	cluster, ok := files["cluster.yaml"]
	if !ok {
		cluster = fallback
	}
	_, c.Stored = files["stored"]
	docs := newDocuments()
	docs.stored = c.Stored
	if err := docs.apply(cluster); err != nil {
		return c, err
	}
	for n := 1; ; n++ {
		prefix, objects := "", files["policies.yaml"]
		if n > 1 {
			prefix = strconv.Itoa(n) + "/"
			objects = files[prefix+"apply.yaml"]
		}
		flows, ok := files[prefix+"flows"]
		if !ok && n > 1 {
			return c, leftOver(files, n)
		}
		if err := docs.apply(objects); err != nil {
			return c, err
		}
		if err := docs.delete(string(files[prefix+"delete"])); err != nil {
			return c, err
		}
		step, err := docs.step(flows, string(files[prefix+"warnings"]))
		if err != nil {
			return c, fmt.Errorf("step %d: %w", n, err)
		}
		c.Steps = append(c.Steps, step)
	}
}

// known reports whether a case may have a file with this name.
func known(name string) bool {
	number, rest, numbered := strings.Cut(name, "/")
	if n, err := strconv.Atoi(number); numbered && err == nil && n > 1 {
		return slices.Contains([]string{"apply.yaml", "delete", "warnings", "flows"}, rest)
	}
	return slices.Contains([]string{"cluster.yaml", "policies.yaml", "stored", "warnings", "flows", GoldenTables, GoldenMaps, GoldenACLs}, name)
}

// leftOver refuses files of steps that are never run, because step n is missing.
func leftOver(files map[string][]byte, n int) error {
	for name := range files {
		number, _, numbered := strings.Cut(name, "/")
		if m, err := strconv.Atoi(number); numbered && err == nil && m >= n {
			return fmt.Errorf("has a file %s, but step %d has no flows", name, n)
		}
	}
	return nil
}

// documents are the objects of a cluster in the order of their creation.
type documents struct {
	keys   []string
	text   map[string]string
	stored bool
}

func newDocuments() *documents { return &documents{text: make(map[string]string)} }

// apply creates or replaces objects.
func (d *documents) apply(text []byte) error {
	for _, doc := range strings.Split("\n"+string(text), "\n---") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var meta struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			return err
		}
		if meta.Kind == "" || meta.Metadata.Name == "" {
			return fmt.Errorf("object without kind or name:\n%s", doc)
		}
		key := meta.Kind + " " + strings.TrimPrefix(meta.Metadata.Namespace+"/"+meta.Metadata.Name, "/")
		if _, ok := d.text[key]; !ok {
			d.keys = append(d.keys, key)
		}
		d.text[key] = doc
	}
	return nil
}

func (d *documents) delete(lines string) error {
	for line := range strings.Lines(lines) {
		key := strings.TrimSpace(line)
		if _, ok := d.text[key]; !ok {
			return fmt.Errorf("delete %q: no such object", key)
		}
		delete(d.text, key)
		d.keys = slices.DeleteFunc(d.keys, func(k string) bool { return k == key })
	}
	return nil
}

func (d *documents) step(flows []byte, expected string) (Step, error) {
	var s Step
	for _, k := range d.keys {
		s.Documents = append(s.Documents, d.text[k])
	}
	snapshot, warnings, err := Snapshot(s.Documents, d.stored)
	if err != nil {
		return s, err
	}
	if err := compareWarnings(warnings, strings.Split(strings.TrimSpace(expected), "\n")); err != nil {
		return s, err
	}
	s.Snapshot = snapshot
	for line := range bytes.Lines(flows) {
		text, _, _ := strings.Cut(string(line), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		f, err := parseFlow(s.Snapshot, text)
		if err != nil {
			return s, fmt.Errorf("flow %q: %w", text, err)
		}
		s.Flows = append(s.Flows, f)
	}
	if len(s.Flows) == 0 {
		return s, fmt.Errorf("has no flows")
	}
	return s, nil
}

// Snapshot reads YAML documents as the sources do, and returns their warnings. stored is true for
// objects that an API server has stored already.
func Snapshot(docs []string, stored bool) (*model.Snapshot, []string, error) {
	reading := manifests.Reading{Limits: manifests.DefaultLimits(), Stored: stored}
	objects, warnings, errs := reading.Parse("case.yaml", []byte(strings.Join(docs, "\n---\n")))
	if len(errs) > 0 {
		return nil, nil, errs[0]
	}
	texts := make([]string, len(warnings))
	for i, w := range warnings {
		texts[i] = w.String()
	}
	return objects.Snapshot(), texts, nil
}

// compareWarnings requires exactly one warning for each expected line, which contains the line, in
// any order.
func compareWarnings(got, expected []string) error {
	for _, line := range expected {
		if line == "" {
			continue
		}
		i := slices.IndexFunc(got, func(w string) bool { return strings.Contains(w, line) })
		if i < 0 {
			return fmt.Errorf("no warning %q among %q", line, got)
		}
		got = slices.Delete(got, i, i+1)
	}
	if len(got) > 0 {
		return fmt.Errorf("unexpected warnings %q", got)
	}
	return nil
}

// parseFlow reads "SRC -> DST PROTO/PORT allow|deny".
func parseFlow(s *model.Snapshot, text string) (Flow, error) {
	f := Flow{Text: text}
	words := strings.Fields(text)
	if len(words) != 5 || words[1] != "->" {
		return f, fmt.Errorf("want SRC -> DST PROTO/PORT allow|deny")
	}
	var err error
	if f.Src, err = address(s, words[0], netip.Addr{}); err != nil {
		return f, err
	}
	if f.Dst, err = address(s, words[2], f.Src); err != nil {
		return f, err
	}
	proto, port, _ := strings.Cut(words[3], "/")
	if f.Protocol, err = model.ParseProtocol(proto); err != nil {
		return f, err
	}
	if (port != "") != f.Protocol.HasPorts() {
		return f, fmt.Errorf("%q: want a port for TCP, UDP and SCTP, and none for others", words[3])
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return f, fmt.Errorf("port %q: want a number up to 65535", port)
		}
		f.Port = uint16(n)
	}
	switch words[4] {
	case "allow":
		f.Want = model.Allow
	case "deny":
		f.Want = model.Deny
	default:
		return f, fmt.Errorf("verdict %q: want allow or deny", words[4])
	}
	return f, nil
}

// address resolves one end of a flow. For a pod or node it returns the first address, or the one in
// the family of like.
func address(s *model.Snapshot, text string, like netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return plain(a)
	}
	var addrs []netip.Addr
	if name, ok := strings.CutPrefix(text, "node:"); ok {
		n, ok := s.Nodes.Get(name)
		if !ok {
			return netip.Addr{}, fmt.Errorf("no node %s", name)
		}
		addrs = n.Addresses
	} else {
		pod, at, exact := strings.Cut(text, "@")
		ns, name, _ := strings.Cut(pod, "/")
		p, ok := s.Pods.Get(model.PodID{Namespace: ns, Name: name})
		if !ok {
			return netip.Addr{}, fmt.Errorf("no pod %s", pod)
		}
		if exact {
			a, err := netip.ParseAddr(at)
			if err != nil {
				return a, err
			}
			return plain(a)
		}
		addrs = p.IPs
	}
	for _, a := range addrs {
		if !like.IsValid() || a.Is6() == like.Is6() {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no address that fits", text)
}

// plain refuses addresses that no packet has.
func plain(a netip.Addr) (netip.Addr, error) {
	if a.Zone() != "" || a.Is4In6() {
		return a, fmt.Errorf("address %s: want no zone, and IPv4 as IPv4", a)
	}
	return a, nil
}
