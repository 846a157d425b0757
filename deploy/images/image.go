// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is a file, directory or symbolic link of an image, owned by root.
type file struct {
	name    string // relative, with slashes
	mode    fs.FileMode
	content []byte
	link    string // target of a symbolic link
}

// readTree reads a directory, in lexical order.
func readTree(root string) ([]file, error) {
	var all []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := file{name: filepath.ToSlash(name), mode: info.Mode()}
		switch info.Mode().Type() {
		case 0:
			f.content, err = os.ReadFile(path)
		case fs.ModeSymlink:
			f.link, err = os.Readlink(path)
		case fs.ModeDir:
		default:
			err = fmt.Errorf("%s is neither file, directory nor symbolic link", path)
		}
		all = append(all, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read directory of image: %w", err)
	}
	return all, nil
}

// newImage makes an image of one layer. Times are those of the epoch, so that
// the same files are the same image.
func newImage(files []file, p v1.Platform, c v1.Config) (v1.Image, error) {
	if p.OS == "windows" {
		files = windowsLayer(files)
	}
	content, err := pack(files)
	if err != nil {
		return nil, fmt.Errorf("pack layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = p.OS, p.Architecture, c
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	for i := range config.History {
		config.History[i].Created = config.Created
	}
	return mutate.ConfigFile(image, config)
}

// windowsLayer puts files where layers of Windows have them, with the registry of a layer that has no other below: Windows makes the
// directory Hives of it, and unpacks no image without.
func windowsLayer(files []file) []file {
	var all []file
	for _, dir := range []string{"Files", "Files/Windows", "Files/Windows/System32", registry} {
		all = append(all, file{name: dir, mode: fs.ModeDir | 0o755})
	}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		all = append(all, file{name: registry + "/" + name, mode: 0o644, content: emptyHive()})
	}
	for _, f := range files {
		f.name = "Files/" + f.name
		all = append(all, f)
	}
	return all
}

func pack(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode.Perm()), Size: int64(len(f.content)),
			ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		switch f.mode.Type() {
		case fs.ModeDir:
			h.Typeflag, h.Name = tar.TypeDir, f.name+"/"
		case fs.ModeSymlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if f.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// archive writes an image as an OCI layout in a tar file, under names that
// containerd understands.
func archive(to string, image v1.Image, names ...string) error {
	return archiveLayout(to, func(path layout.Path) error {
		for _, name := range names {
			if err := path.AppendImage(image, named(name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// named annotates an entry of a layout with its name.
func named(name string) layout.Option {
	return layout.WithAnnotations(map[string]string{"io.containerd.image.name": name,
		"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:]})
}

// archiveIndex writes an OCI layout in a tar file whose entry of that name is an index of
// images for several platforms. It returns the digest of the index.
func archiveIndex(to, name string, images []platformImage) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: &i.platform}})
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	return digest, archiveLayout(to, func(path layout.Path) error {
		if err := path.AppendIndex(index, named(name)); err != nil {
			return err
		}
		for _, i := range images {
			if i.name == name {
				continue // the index has that name
			}
			if err := path.AppendImage(i.image, named(i.name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// archiveLayout writes what add appends to an empty OCI layout.
func archiveLayout(to string, add func(layout.Path) error) error {
	dir, err := os.MkdirTemp("", "isthmus-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if err := add(path); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	files, err := readTree(dir)
	if err != nil {
		return err
	}
	for i := range files {
		files[i].mode = files[i].mode.Type() | 0o644 // whatever the umask was
		if files[i].mode.IsDir() {
			files[i].mode |= 0o755
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	content, err := pack(files)
	if err != nil {
		return fmt.Errorf("pack image: %w", err)
	}
	if err := os.WriteFile(to+".part", content, 0o644); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return os.Rename(to+".part", to)
}
