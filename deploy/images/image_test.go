// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestProduct writes the images twice and expects the same bytes.
func TestProduct(t *testing.T) {
	bin := t.TempDir()
	for _, p := range []string{"linux-amd64", "linux-arm64", "windows-amd64"} {
		if err := os.Mkdir(filepath.Join(bin, p), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"isthmus-agent", "isthmus-cni", "isthmusctl", "isthmus-controller"} {
			if p == "windows-amd64" {
				command += ".exe"
			}
			if err := os.WriteFile(filepath.Join(bin, p, command), []byte(p+command), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	var first map[string][]byte
	for range 2 {
		out := t.TempDir()
		if err := run([]string{"-bin", bin, "-version", "v1", "-o", out}); err != nil {
			t.Fatal(err)
		}
		got := make(map[string][]byte)
		for _, name := range []string{"isthmus-linux-amd64.tar", "isthmus-linux-arm64.tar", "isthmus-windows-amd64.tar"} {
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
	if err := run([]string{"-bin", t.TempDir(), "-o", t.TempDir()}); err == nil {
		t.Error("images without commands")
	}
}
