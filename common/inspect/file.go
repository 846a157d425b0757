// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

const (
	// MaxSize bounds the unpacked files of a Bundle, in bytes. A node of a cluster of 10,000 pods needs
	// about a tenth.
	MaxSize = 256 << 20
	// maxFiles bounds their number.
	maxFiles = 1000
	// dir is the directory in the archive.
	dir = "isthmus-bundle/"
)

// parts are the JSON files of a Bundle, by name.
func (b *Bundle) parts() map[string]any {
	return map[string]any{"about.json": &b.About, "cluster.json": &b.Cluster, "endpoints.json": &b.Endpoints,
		"installed.json": &b.Installed, "drift.json": &b.Drift, countsFile: &b.Counts}
}

// countsFile is not in bundles of earlier versions.
const countsFile = "counts.json"

// Write writes the Bundle as an archive.
func (b *Bundle) Write(out io.Writer) error {
	packed := gzip.NewWriter(out)
	t := tar.NewWriter(packed)
	add := func(name string, content []byte) error {
		err := t.WriteHeader(&tar.Header{Name: dir + name, Mode: 0o600, Size: int64(len(content)), ModTime: b.About.Created, Format: tar.FormatPAX})
		if err == nil {
			_, err = t.Write(content)
		}
		return err
	}
	parts := b.parts()
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		content, err := json.MarshalIndent(parts[name], "", " ")
		if err == nil {
			err = add(name, append(content, '\n'))
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.Files)) {
		if err := add(name, b.Files[name]); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return errors.Join(t.Close(), packed.Close())
}

// WriteJSON writes the parts of the Bundle as one object, for programs. Nothing reads it back.
func (b *Bundle) WriteJSON(out io.Writer) error {
	parts := make(map[string]any)
	for name, part := range b.parts() {
		parts[strings.TrimSuffix(name, ".json")] = part
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(parts)
}

// IsBundle reports whether content begins as an archive of Write does: as gzip.
func IsBundle(content []byte) bool { return bytes.HasPrefix(content, []byte{0x1f, 0x8b}) }

// Read reads an archive. It unpacks nothing on disk, and refuses one that is too large.
func Read(in io.Reader) (*Bundle, error) {
	unpacked, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBundle, err)
	}
	b := &Bundle{Files: make(map[string][]byte)}
	parts := b.parts()
	missing := maps.Clone(parts)
	delete(missing, countsFile)
	t := tar.NewReader(unpacked)
	for left, n := int64(MaxSize), 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBundle, err)
		}
		if left -= h.Size; left < 0 || n == maxFiles {
			return nil, fmt.Errorf("%w: it unpacks to more than %d bytes or %d files", errBundle, MaxSize, maxFiles)
		}
		name, ours := strings.CutPrefix(h.Name, dir)
		if !ours || h.Typeflag != tar.TypeReg || path.Base(name) != name {
			return nil, fmt.Errorf("%w: it holds %q", errBundle, h.Name)
		}
		content, err := io.ReadAll(t)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errBundle, name, err)
		}
		part, known := parts[name]
		if !known {
			b.Files[name] = content
			continue
		}
		if err := json.Unmarshal(content, part); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errBundle, name, err)
		}
		delete(missing, name)
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		return nil, fmt.Errorf("%w: it has no %s", errBundle, name)
	}
	if b.About.Format > Format {
		return nil, fmt.Errorf("the bundle has format %d, this isthmusctl reads up to %d: use the isthmusctl of version %s", b.About.Format, Format, b.About.Version)
	}
	return b, b.check()
}

// check refuses null objects, which only damage explains.
func (b *Bundle) check() error {
	if err := b.Cluster.Check(); err != nil {
		return err
	}
	if b.Counts != nil && slices.ContainsFunc(b.Counts.Causes, func(n Count) bool { return n.Cause == nil }) {
		return fmt.Errorf("%w: counts.json has a number without a cause", errBundle)
	}
	return nil
}

// Check refuses objects that were decoded from JSON which MakeCluster does not explain.
func (c Cluster) Check() error {
	if slices.Contains(c.Namespaces, nil) || slices.Contains(c.Nodes, nil) || slices.Contains(c.Pods, nil) ||
		slices.Contains(c.Policies, nil) || slices.Contains(c.DenyLists, nil) || slices.Contains(c.ServiceCIDRs, nil) {
		return fmt.Errorf("%w: cluster.json has an empty object", errBundle)
	}
	for _, p := range c.Policies {
		if p.Tier > model.TierBaseline {
			return fmt.Errorf("%w: %s has tier %d", errBundle, p.Origin, p.Tier)
		}
		for _, rules := range p.Rules {
			for _, r := range rules {
				if r.Action > model.ActionMayPass {
					return fmt.Errorf("%w: %s has a rule with action %d", errBundle, p.Origin, r.Action)
				}
			}
		}
	}
	return nil
}
