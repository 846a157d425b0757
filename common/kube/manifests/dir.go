// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// LoadDir reads the manifests below a directory: .yaml, .yml and .json files, in order of their paths. It
// skips names that begin with a dot, and follows links. The returned objects are those without errors. A
// caller that enforces them must not do so while there are errors.
func LoadDir(ctx context.Context, dir string, limits Limits) (model.Objects, []Warning, []DocumentError) {
	return Reading{Limits: limits}.Dir(ctx, dir)
}

// tree is the text of all manifests of a directory.
type tree struct {
	files  []file
	errors []DocumentError
	// dirs are the directories that were read, by their real paths, and the parent of the top directory if
	// that is a link.
	dirs []string
	// digest identifies names and contents.
	digest [sha256.Size]byte
}

type file struct {
	name string // below the directory, with slashes
	data []byte
	// open is set instead of data for a file that is streamed.
	open func() (io.ReadCloser, error)
}

// load reads the objects of all files.
func (t *tree) load(r Reading) *loader {
	l := newLoader(r)
	for _, f := range t.files {
		if f.open != nil {
			l.stream(f.name, f.open)
			continue
		}
		l.file(f.name, f.data)
	}
	return l
}

// reader reads a tree within limits.
type reader struct {
	ctx    context.Context
	limits Limits
	tree   *tree
	left   int64
	// seen are the real paths of the directories that were read: links may form cycles.
	seen map[string]bool
}

func readTree(ctx context.Context, dir string, limits Limits) *tree {
	r := &reader{ctx: ctx, limits: limits, tree: &tree{}, left: limits.TotalBytes, seen: make(map[string]bool)}
	if err := r.dir(dir, ""); err != nil {
		r.tree.errors = append(r.tree.errors, DocumentError{File: dir, Detail: err.Error()})
	}
	if info, err := os.Lstat(dir); err == nil && info.Mode().Type() == fs.ModeSymlink {
		if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
			r.tree.dirs = append(r.tree.dirs, parent)
		}
	}
	h := sha256.New()
	for _, f := range r.tree.files {
		fmt.Fprintf(h, "%q %d\n", f.name, len(f.data))
		h.Write(f.data)
	}
	for _, e := range r.tree.errors {
		fmt.Fprintf(h, "%q\n", e.Error())
	}
	h.Sum(r.tree.digest[:0])
	return r.tree
}

var errLimit = errors.New("limit exceeded")

// dir reads a directory. An error ends reading. A problem of one file is noted, and reading continues.
func (r *reader) dir(path, name string) error {
	if err := r.ctx.Err(); err != nil {
		return fmt.Errorf("reading was interrupted: %w", err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return plain("open directory", err)
	}
	if r.seen[real] {
		return nil
	}
	r.seen[real] = true
	if len(r.seen) > r.limits.Directories {
		return fmt.Errorf("more than %d directories: remove some or raise the limit: %w", r.limits.Directories, errLimit)
	}
	entries, err := os.ReadDir(path)
	switch {
	case err != nil && name != "":
		r.note(name, plain("read directory", err).Error())
		return nil
	case err != nil:
		return plain("read directory", err)
	}
	r.tree.dirs = append(r.tree.dirs, real)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		below, full := joinName(name, e.Name()), filepath.Join(path, e.Name())
		info, err := os.Stat(full)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// The file was deleted meanwhile, or is a broken link.
			if _, err := os.Lstat(full); err == nil && isManifest(e.Name()) {
				r.note(below, "broken symbolic link: fix or remove it")
			}
		case err != nil:
			r.note(below, plain("open file", err).Error())
		case info.IsDir():
			if err := r.dir(full, below); err != nil {
				return err
			}
		case isManifest(e.Name()):
			if err := r.file(full, below, info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *reader) file(path, name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		r.note(name, "not a regular file: remove it")
		return nil
	}
	if len(r.tree.files) == r.limits.Files {
		return fmt.Errorf("more than %d files: remove some or raise the limit: %w", r.limits.Files, errLimit)
	}
	if above := r.limits.StreamBytes; above > 0 && info.Size() > above {
		r.tree.files = append(r.tree.files, file{name: name, open: opener(r.ctx, path)})
		return nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted since the directory was read
	}
	if err != nil {
		r.note(name, plain("open file", err).Error())
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, r.limits.FileBytes+1))
	switch {
	case err != nil:
		r.note(name, plain("read file", err).Error())
		return nil
	case int64(len(data)) > r.limits.FileBytes:
		r.note(name, fmt.Sprintf("more than %d bytes: split the file or raise the limit", r.limits.FileBytes))
		return nil
	}
	if r.left -= int64(len(data)); r.left < 0 {
		return fmt.Errorf("more than %d bytes in all files: remove some or raise the limit: %w", r.limits.TotalBytes, errLimit)
	}
	r.tree.files = append(r.tree.files, file{name: name, data: data})
	return nil
}

func (r *reader) note(name, detail string) {
	r.tree.errors = append(r.tree.errors, DocumentError{File: name, Detail: detail})
}

func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

func joinName(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// plain removes the path from an error: the caller names it.
func plain(what string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", what, err)
}
