// SPDX-License-Identifier: Apache-2.0

// Package statefile replaces and reads the small files of the agent in its state directory. Each is replaced as a whole. Its data
// is on the disk before its name refers to it, so a power cut leaves the old or the new content: NTFS journals the rename, but no data.
//
// It knows nothing of what the files say. It is not for the records of endpoints, which package endpoint keeps.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxSize bounds a file, in bytes: 500 prepared endpoints with the longest DNS settings.
const maxSize = 8 << 20

// ErrDamaged is the error of Load for a file that was not as Save writes it. It is now beside its place, with the suffix
// Aside, so the next Load finds none.
var ErrDamaged = errors.New("is damaged")

// Aside is the suffix of a damaged file, and temp that of one that is being written.
const (
	Aside = ".broken"
	temp  = ".new"
)

// Save replaces a file by a value in JSON. After an error the old content stays.
func Save(file string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file+temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := write(f, text); err != nil {
		return errors.Join(err, os.Remove(file+temp))
	}
	return os.Rename(file+temp, file)
}

// disk is the part of *os.File that write needs.
type disk interface {
	io.WriteCloser
	Sync() error
}

// write writes a text to the disk, and closes the file.
func write(f disk, text []byte) error {
	_, err := f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Load gives the content of a file to decode. Without the file, the error is fs.ErrNotExist. A file that decode does not accept, or
// that is too large, is moved aside.
func Load(file string, decode func(text []byte) error) error {
	text, err := read(file)
	if err != nil {
		return err
	}
	if len(text) > maxSize {
		err = fmt.Errorf("it has more than %d bytes", maxSize)
	} else {
		err = decode(text)
	}
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s %w, and is now %s: %w", file, ErrDamaged, file+Aside, err), os.Rename(file, file+Aside))
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}

// Remove removes a file with what Save and Load leave beside it.
func Remove(file string) error {
	var errs []error
	for _, f := range []string{file, file + temp, file + Aside} {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
