// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestWindowsLayer expects what Windows needs to unpack an image without a base image: every directory before its files, five hives, and
// no directory Hives, which it makes itself.
func TestWindowsLayer(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "windows-amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"isthmus-agent.exe", "isthmus-cni.exe", "isthmusctl.exe", "LICENCES.txt"} {
		if err := os.WriteFile(filepath.Join(dir, "windows-amd64", name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	image, err := productImage(dir, "v1", v1.Platform{OS: "windows", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	made, hives := []string{"."}, 0
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if parent := filepath.Dir(name); !slices.Contains(made, parent) || strings.HasPrefix(name, "Hives") {
			t.Errorf("%s without or before its directory, or a directory that Windows makes", name)
		}
		if h.Typeflag == tar.TypeDir {
			made = append(made, name)
		}
		if filepath.Dir(name) == registry {
			text, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(text, emptyHive()) {
				t.Errorf("%s: %v, or no hive", name, err)
			}
			hives++
		}
	}
	if hives != 5 || !slices.Contains(made, registry) {
		t.Errorf("%d hives, want 5, in %v", hives, made)
	}
}

// TestEmptyHive reads the hive again: its checksum, its cells, which fill the bin, and its root key.
func TestEmptyHive(t *testing.T) {
	b, le := emptyHive(), binary.LittleEndian
	if len(b) != 2*hiveBlock || string(b[:4]) != "regf" || le.Uint32(b[508:]) != hiveChecksum(b) || le.Uint32(b[4:]) != le.Uint32(b[8:]) {
		t.Fatalf("header of %d bytes: % x", len(b), b[:64])
	}
	cells := b[hiveBlock:]
	if string(cells[:4]) != "hbin" || le.Uint32(cells[8:]) != hiveBlock || le.Uint32(b[40:]) != hiveBlock {
		t.Fatalf("bin: % x", cells[:32])
	}
	var kinds []string
	for at := 0x20; at < hiveBlock; {
		size := int(int32(le.Uint32(cells[at:])))
		kind := "free"
		if size < 0 {
			size, kind = -size, string(cells[at+4:at+6])
		}
		if size%8 != 0 || size == 0 || at+size > hiveBlock {
			t.Fatalf("cell at %#x has %d bytes", at, size)
		}
		kinds, at = append(kinds, kind), at+size
	}
	if want := []string{"nk", "sk", "free"}; !slices.Equal(kinds, want) {
		t.Errorf("cells %v, want %v", kinds, want)
	}
	root := cells[le.Uint32(b[36:]):]
	if string(root[4:6]) != "nk" || le.Uint32(root[48:]) != skCell || string(root[80:80+le.Uint16(root[76:])]) != "ROOT" {
		t.Errorf("root key: % x", root[:rootSize])
	}
	access := cells[skCell:]
	if size := le.Uint32(access[20:]); int(size) != len(descriptor()) || size != 100 {
		t.Errorf("security descriptor of %d bytes", size)
	}
}
