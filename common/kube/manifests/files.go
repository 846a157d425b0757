// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/isthmus-net/isthmus/common/model"
)

// File is the text of one file of manifests. Errors use its name; a name that ends in .json means JSON.
type File struct {
	Name string
	Data []byte
	// Open, if set, returns the text instead of Data; it is read piece by piece.
	Open func() (io.ReadCloser, error)
}

// ReadFiles reads a file of manifests, or all files below a directory as LoadDir does. Names are the given
// path and the path below it.
func ReadFiles(ctx context.Context, path string, limits Limits) ([]File, []DocumentError) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, []DocumentError{{File: path, Detail: plain("open file", err).Error()}}
	}
	var t *tree
	name := func(string) string { return path }
	if info.IsDir() {
		t = readTree(ctx, path, limits)
		name = func(below string) string {
			if below == path { // the directory itself
				return path
			}
			return filepath.Join(path, filepath.FromSlash(below))
		}
	} else {
		r := &reader{ctx: ctx, limits: limits, tree: &tree{}, left: limits.TotalBytes}
		if err := r.file(path, path, info); err != nil {
			r.note(path, err.Error())
		}
		t = r.tree
	}
	var files []File
	for _, f := range t.files {
		files = append(files, File{name(f.name), f.data, f.open})
	}
	for i := range t.errors {
		t.errors[i].File = name(t.errors[i].File)
	}
	return files, t.errors
}

// ParseFiles parses several files as one cluster; if two objects have one name the later one counts. The
// returned objects are those without errors.
func ParseFiles(files []File, limits Limits) (model.Objects, []Warning, []DocumentError) {
	return Reading{Limits: limits}.ParseFiles(files)
}
