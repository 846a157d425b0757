// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// File is a file of lines that is replaced when it is full. The older ones have the suffixes .1 (the newest) to .N. It is
// not safe for concurrent use, and no other process may write the file.
type File struct {
	path string
	max  int64
	keep int

	file *os.File
	size int64
}

// tail is how much of the end of a file is read to find its last lines, in bytes.
const tail = 256 << 10

// OpenFile opens or creates a file that only its owner may read. max is its size in bytes, keep the number of older
// ones. It removes a line that an earlier process has not finished, and older files beyond keep.
func OpenFile(path string, limit int64, keep int) (*File, error) {
	f := &File{path: path, max: limit, keep: keep}
	if err := f.open(); err != nil {
		return nil, err
	}
	if err := f.trim(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, f.prune()
}

func (f *File) open() error {
	if info, err := os.Lstat(f.path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("open %s: it is not a regular file: remove it, or name another file", f.path)
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// end returns the last bytes of the file.
func (f *File) end() ([]byte, error) {
	last := make([]byte, min(f.size, tail))
	_, err := f.file.ReadAt(last, f.size-int64(len(last)))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return last, err
}

// trim removes an unfinished last line.
func (f *File) trim() error {
	last, err := f.end()
	if err != nil || len(last) == 0 || last[len(last)-1] == '\n' {
		return err
	}
	size := f.size - int64(len(last)) + int64(bytes.LastIndexByte(last, '\n')+1)
	if err := f.file.Truncate(size); err != nil {
		return err
	}
	f.size = size
	return nil
}

// LastLines returns the last lines of the file, or of the newest older one. The first of them may be a part of a line.
func (f *File) LastLines() ([]byte, error) {
	text, err := f.end()
	if err == nil && len(text) == 0 && f.keep > 0 {
		older := &File{path: f.path + ".1"}
		if _, missing := os.Lstat(older.path); errors.Is(missing, fs.ErrNotExist) {
			return nil, nil
		}
		if err := older.open(); err != nil {
			return nil, err
		}
		defer older.Close()
		text, err = older.end()
	}
	return text, err
}

// Write appends lines, all of them or none. If the file has no room for them, it first replaces the file.
func (f *File) Write(lines []byte) (int, error) {
	if f.file == nil { // an earlier call could not open it
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	if f.size > 0 && f.size+int64(len(lines)) > f.max {
		if err := f.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(lines)
	if err != nil {
		return 0, errors.Join(err, f.file.Truncate(f.size)) // no half line, as on a full disk
	}
	f.size += int64(n)
	return n, nil
}

// rotate gives each file the suffix of the next older one.
func (f *File) rotate() error {
	if err := f.prune(); err != nil {
		return err
	}
	for n := f.keep; n > 0; n-- {
		from := f.older(n - 1)
		if err := os.Rename(from, f.older(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep older file: %w", err)
		}
	}
	if f.keep == 0 {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err := f.Close()
	f.file = nil
	return errors.Join(err, f.open())
}

func (f *File) older(n int) string {
	if n == 0 {
		return f.path
	}
	return f.path + "." + strconv.Itoa(n)
}

// prune removes older files beyond keep.
func (f *File) prune() error {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		suffix, ours := strings.CutPrefix(e.Name(), filepath.Base(f.path)+".")
		if n, err := strconv.Atoi(suffix); ours && err == nil && strconv.Itoa(n) == suffix && n > f.keep {
			errs = append(errs, os.Remove(filepath.Join(filepath.Dir(f.path), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Close closes the file.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
