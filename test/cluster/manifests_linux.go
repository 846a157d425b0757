// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// Manifests is the directory that the agents watch. It has a file for each document
// of the user that an API server would accept, one for the nodes, and one for each
// pod. All of them may change while the cluster runs.
type Manifests struct {
	dir string
	// apply, if set, receives each document instead.
	apply func(text string) error
}

// Take copies the documents of a user's directory, except Node objects, which the cluster writes, and documents
// with errors. It returns the errors and warnings.
func (m *Manifests) Take(ctx context.Context, dir string) (rejected []manifests.DocumentError, warnings []manifests.Warning, err error) {
	_, warnings, rejected = manifests.LoadDir(ctx, dir, manifests.DefaultLimits())
	bad := make(map[string]bool)
	for _, e := range rejected {
		if e.File == "" {
			return rejected, warnings, e
		}
		bad[fmt.Sprintf("%s#%d", e.File, e.Document)] = true
	}
	n := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(path))) {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if bad[name+"#0"] {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, doc := range split(path, text) {
			if bad[fmt.Sprintf("%s#%d", name, i+1)] || skip(doc) {
				continue
			}
			n++
			if err := m.write(fmt.Sprintf("user-%04d%s", n, filepath.Ext(path)), doc); err != nil {
				return err
			}
		}
		return nil
	})
	return rejected, warnings, err
}

// split returns the documents of a file.
func split(path string, text []byte) [][]byte {
	if strings.EqualFold(filepath.Ext(path), ".json") {
		return [][]byte{text}
	}
	var docs [][]byte
	var doc bytes.Buffer
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("---")) && len(bytes.TrimSpace(bytes.TrimLeft(line, "-"))) == 0 {
			docs = append(docs, bytes.Clone(doc.Bytes()))
			doc.Reset()
			continue
		}
		doc.Write(line)
	}
	docs = append(docs, doc.Bytes())
	return slices.DeleteFunc(docs, func(d []byte) bool {
		var content any
		return yaml.Unmarshal(d, &content) == nil && content == nil
	})
}

// skip reports whether a document is a Node.
func skip(doc []byte) bool {
	var meta struct{ Kind string }
	return yaml.Unmarshal(doc, &meta) == nil && meta.Kind == "Node"
}

// write replaces a file atomically, so that no agent reads half of it; or it changes the API server.
func (m *Manifests) write(name string, text []byte) error {
	if m.apply != nil {
		return m.apply(string(text))
	}
	part := filepath.Join(m.dir, "."+name+".part")
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(m.dir, name))
}

// Objects reads the directory as the agents do.
func (m *Manifests) Objects(ctx context.Context) (model.Objects, error) {
	objects, _, errs := manifests.LoadDir(ctx, m.dir, manifests.DefaultLimits())
	if len(errs) > 0 {
		return objects, errs[0]
	}
	return objects, nil
}

// WriteNodes writes the Node objects of the given nodes.
func (m *Manifests) WriteNodes(nodes []*Node) error {
	var b bytes.Buffer
	for _, n := range nodes {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: %s\n  labels: {kubernetes.io/os: %s, kubernetes.io/hostname: %s}\n", n.Name, n.OS, n.Name)
		if said := n.nodeInfo(); m.apply == nil && said != (model.NodeInfo{}) {
			b.WriteString("  annotations:\n")
			for _, word := range strings.Fields(said.Text()) {
				name, value, _ := strings.Cut(word, "=")
				fmt.Fprintf(&b, "    %s: %q\n", name, value)
			}
		}
		b.WriteString("spec:\n  podCIDRs: [")
		for i, c := range n.PodCIDRs {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%q", c)
		}
		b.WriteString("]\nstatus:\n  addresses:\n")
		for _, a := range n.Addresses() {
			fmt.Fprintf(&b, "  - {type: InternalIP, address: %q}\n", a)
		}
	}
	return m.write("cluster-nodes.yaml", b.Bytes())
}

// WritePod writes a pod as the kubelet would report it.
func (m *Manifests) WritePod(p *model.Pod) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %q\n  namespace: %q\n  labels:", p.Name, p.Namespace)
	labels := 0
	for k, v := range p.Labels.All() {
		fmt.Fprintf(&b, "\n    %q: %q", k, v)
		labels++
	}
	if labels == 0 {
		b.WriteString(" {}")
	}
	if p.FixedIPs != "" {
		fmt.Fprintf(&b, "\n  annotations: {%s: %q}", model.AnnotationAddresses, p.FixedIPs)
	}
	fmt.Fprintf(&b, "\nspec:\n  nodeName: %q\n  containers:\n  - name: main\n    image: none\n    ports:", p.Node)
	for _, port := range p.Ports {
		fmt.Fprintf(&b, "\n    - {containerPort: %d, protocol: %s, name: %q}", port.Port, port.Protocol, port.Name)
	}
	if len(p.Ports) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\nstatus:\n  phase: Running\n")
	if p.Started > 0 {
		fmt.Fprintf(&b, "  conditions: [{type: PodReadyToStartContainers, status: \"True\", lastTransitionTime: %q}]\n",
			time.Unix(p.Started, 0).UTC().Format(time.RFC3339))
	}
	for i, a := range p.IPs {
		if i == 0 {
			fmt.Fprintf(&b, "  podIP: %q\n  podIPs:\n", a)
		}
		fmt.Fprintf(&b, "  - ip: %q\n", a)
	}
	return m.write(podFile(p.PodID), b.Bytes())
}

// RemovePod removes the object that WritePod has written.
func (m *Manifests) RemovePod(id model.PodID) error { return m.remove(podFile(id)) }

// podFile sorts after the user's files, so that it wins if both have a Pod with that name.
func podFile(id model.PodID) string { return "zz-pod-" + id.Namespace + "-" + id.Name + ".yaml" }

// policyFile finds the file of a policy. ok is false if removing the file would not delete exactly that policy:
// several files have it, or the file has other objects too.
func (m *Manifests) policyFile(o model.Origin) (name string, content []byte, ok bool, err error) {
	paths, err := filepath.Glob(filepath.Join(m.dir, "user-*"))
	if err != nil {
		return "", nil, false, err
	}
	found := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", nil, false, err
		}
		objects, _, _ := manifests.Parse(path, text, manifests.DefaultLimits())
		for _, p := range objects.Policies {
			if p.Origin.Key() == o.Key() {
				name, content = filepath.Base(path), text
				found += len(objects.Policies)
			}
		}
	}
	return name, content, found == 1, nil
}

// Put writes a document under a name that the caller chooses, and Drop removes it.
func (m *Manifests) Put(name, text string) error { return m.write("user-"+name+".yaml", []byte(text)) }

// Drop is described with Put.
func (m *Manifests) Drop(name string) error { return m.remove("user-" + name + ".yaml") }

func (m *Manifests) remove(name string) error { return os.Remove(filepath.Join(m.dir, name)) }

// WriteNamespaces writes namespaces that the user's files do not have.
func (m *Manifests) WriteNamespaces(namespaces []*model.Namespace) error {
	var b bytes.Buffer
	for _, ns := range namespaces {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: %q\n  labels:\n", ns.Name)
		for k, v := range ns.Labels.All() {
			fmt.Fprintf(&b, "    %q: %q\n", k, v)
		}
	}
	return m.write("cluster-namespaces.yaml", b.Bytes())
}
