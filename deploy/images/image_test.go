// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestProduct writes the images twice and expects the same bytes.
func TestProduct(t *testing.T) {
	bin := t.TempDir()
	for _, p := range []string{"linux-amd64", "linux-arm64", "windows-amd64"} {
		if err := os.Mkdir(filepath.Join(bin, p), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"isthmus-agent", "isthmus-cni", "isthmusctl", "isthmus-controller", "isthmus-relay"} {
			if p == "windows-amd64" {
				command += ".exe"
			}
			if err := os.WriteFile(filepath.Join(bin, p, command), []byte(p+command), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if p == "windows-amd64" {
			if err := run([]string{"-bin", bin, "-o", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "-licences-only") {
				t.Errorf("images without licences: %v", err)
			}
		}
		if err := os.WriteFile(filepath.Join(bin, p, "LICENCES.txt"), []byte("terms of "+p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var first map[string][]byte
	for range 2 {
		out := t.TempDir()
		if err := run([]string{"-bin", bin, "-version", "v1", "-o", out}); err != nil {
			t.Fatal(err)
		}
		got := make(map[string][]byte)
		for _, name := range []string{"isthmus-linux-amd64.tar", "isthmus-linux-arm64.tar", "isthmus-windows-amd64.tar", "isthmus-index.tar"} {
			content, err := os.ReadFile(filepath.Join(out, name))
			if err != nil || !bytes.Contains(content, []byte(`"ghcr.io/isthmus-net/isthmus:v1`)) || !bytes.Contains(content, []byte(`"org.opencontainers.image.version":"v1"`)) {
				t.Errorf("%s: %v, or not named and labelled", name, err)
			}
			if first != nil && !bytes.Equal(content, first[name]) {
				t.Errorf("%s differs from build to build", name)
			}
			got[name] = content
		}
		first = got
	}
	checkIndex(t, first["isthmus-index.tar"])
	if err := run([]string{"-bin", t.TempDir(), "-o", t.TempDir()}); err == nil {
		t.Error("images without commands")
	}
}

// checkIndex expects an entry for the index of all platforms, and one for Windows alone.
func checkIndex(t *testing.T, archive []byte) {
	t.Helper()
	files := make(map[string][]byte)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) (m v1.IndexManifest) {
		if err := json.Unmarshal(files[name], &m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return m
	}
	top := read("index.json")
	var names []string
	for _, m := range top.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"])
	}
	if want := []string{"ghcr.io/isthmus-net/isthmus:v1", "ghcr.io/isthmus-net/isthmus:v1-windows"}; !slices.Equal(names, want) {
		t.Fatalf("entries %q, want %q", names, want)
	}
	if !top.Manifests[0].MediaType.IsIndex() {
		t.Errorf("%s is a %s", names[0], top.Manifests[0].MediaType)
	}
	var platforms []string
	for _, m := range read("blobs/sha256/" + top.Manifests[0].Digest.Hex).Manifests {
		platforms = append(platforms, m.Platform.String())
		var image v1.Manifest
		if err := json.Unmarshal(files["blobs/sha256/"+m.Digest.Hex], &image); err != nil || len(image.Layers) != 1 {
			t.Fatalf("%s: %v, %d layers", m.Platform, err, len(image.Layers))
		}
		for _, blob := range []v1.Hash{image.Config.Digest, image.Layers[0].Digest} {
			if len(files["blobs/sha256/"+blob.Hex]) == 0 {
				t.Errorf("%s: blob %s is missing", m.Platform, blob)
			}
		}
		platform := strings.ReplaceAll(m.Platform.String(), "/", "-")
		if got := licencesOf(t, files["blobs/sha256/"+image.Layers[0].Digest.Hex]); got != "terms of "+platform {
			t.Errorf("the licences in the image for %s are %q", platform, got)
		}
	}
	if want := []string{"linux/amd64", "linux/arm64", "windows/amd64"}; !slices.Equal(platforms, want) {
		t.Errorf("the index has %q, want %q", platforms, want)
	}
}

// licencesOf returns the licences in a layer of an image.
func licencesOf(t *testing.T, layer []byte) string {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zr); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("no licences in the layer: %v", err)
		}
		if h.Name == "LICENCES.txt" || h.Name == "Files/LICENCES.txt" {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(content)
		}
	}
}
