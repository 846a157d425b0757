// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

const (
	recordSuffix = ".json"
	tempSuffix   = ".tmp"
	// asideSuffix marks files that could not be read.
	asideSuffix = ".broken"
	// maxRecord bounds a file, in bytes: a pod with 1000 host ports takes 140 KiB.
	maxRecord = 256 << 10
	// maxInPlace bounds a file that is overwritten where it is, in bytes. The
	// kernel copies that much in one step, so that a killed process leaves the old
	// content or the new one.
	maxInPlace = 4 << 10
)

// ErrNoTombstone is returned by Release when the record was removed because no
// tombstone could be written.
var ErrNoTombstone = errors.New("the record is removed without a tombstone")

// Store is a directory of records.
type Store struct{ dir string }

// Open creates the directory if it is missing, for the owner only, and removes
// the temporary files of writes that did not come to an end. Nobody else may
// use the directory at the same time.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open record directory %q: the path must be absolute", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create record directory: %w", err)
	}
	if err := closeToOthers(dir); err != nil {
		return nil, fmt.Errorf("close record directory to others: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read record directory: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), tempSuffix) && e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, fmt.Errorf("remove unfinished record: %w", err)
			}
		}
	}
	return &Store{dir: dir}, nil
}

// closeToOthers sets the mode of a directory. It writes nothing if the mode is
// right, so that an agent starts on a read-only file system, too.
func closeToOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() == 0o700 {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// fileName is a hash because identities may be longer than file names may be
// and may differ in case only.
func fileName(id model.EndpointID) string {
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:16]) + recordSuffix
}

// Load reads all records, in the order of their creation. Files that cannot be
// understood are moved aside and reported in problems: their endpoints are
// unknown from then on. An error means that nothing was changed and the store
// must not be used; a record that a newer agent wrote is one.
func (s *Store) Load() (records []Record, problems []error, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read record directory: %w", err)
	}
	broken := make(map[string]error)
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, recordSuffix) {
			continue
		}
		path := filepath.Join(s.dir, name)
		r, err := readRecord(path, e.Type())
		var unread *os.PathError
		switch {
		case errors.Is(err, errNewer):
			return nil, nil, fmt.Errorf("load %s: %w: run the agent that wrote it, or drain the node and remove the file", path, err)
		case errors.As(err, &unread):
			return nil, nil, fmt.Errorf("load record: %w", err)
		case err == nil && fileName(r.ID()) != name:
			err = fmt.Errorf("holds the record of %s, whose file is %s", r.ID(), fileName(r.ID()))
		}
		if err != nil {
			broken[path] = err
			continue
		}
		records = append(records, r)
	}
	for path, cause := range broken {
		aside, err := moveAside(path)
		if err != nil {
			return nil, nil, fmt.Errorf("move broken record %s aside: %w", path, err)
		}
		problems = append(problems, fmt.Errorf("endpoint record %s: %w; moved to %s, the endpoint is removed: restart its pod", path, cause, aside))
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	slices.SortFunc(records, func(a, b Record) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID()), string(b.ID()))
	})
	return records, problems, nil
}

func readRecord(path string, kind os.FileMode) (Record, error) {
	if !kind.IsRegular() {
		return Record{}, fmt.Errorf("is not a regular file but %s", kind)
	}
	f, err := os.Open(path)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return Record{}, err
	}
	if len(b) > maxRecord {
		return Record{}, fmt.Errorf("is larger than %d bytes", maxRecord)
	}
	return decode(b)
}

// moveAside renames a file to a name that is not in use.
func moveAside(path string) (string, error) {
	for i := 0; ; i++ {
		aside := path + asideSuffix
		if i > 0 {
			aside += fmt.Sprint(i)
		}
		if _, err := os.Lstat(aside); err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		return aside, os.Rename(path, aside)
	}
}

// Put writes a record in place of the endpoint's earlier one. When it returns
// without error the record is there for as long as the endpoint can be, whatever
// becomes of this process (ADR 33); after an error the earlier one is, or the new
// one.
func (s *Store) Put(r Record) error {
	b, err := encode(r)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, fileName(r.ID()))
	if err := s.replace(path, b); err != nil {
		return fmt.Errorf("write record of %s: %w%s", r.ID(), err, s.remedy(err))
	}
	return nil
}

// remedy says what to do about an error of a write, if that is known.
func (s *Store) remedy(err error) string {
	switch {
	case isFull(err):
		return fmt.Sprintf(": free space or inodes on the disk of %s", s.dir)
	case isReadOnly(err):
		return fmt.Sprintf(": mount the disk of %s read-write", s.dir)
	}
	return ""
}

func (s *Store) replace(path string, b []byte) error {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = flush(f)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// Release puts a tombstone in place of the endpoint's record, as
// Record.Tombstone makes it. Pods are evicted because a disk is full, so that a
// full disk must not keep them: if there is no space for another file, the
// tombstone overwrites the record in place. If that fails too, the record is
// removed, and the error is ErrNoTombstone with the cause. After any other error
// the record is still there.
func (s *Store) Release(tombstone Record) error {
	cause := s.Put(tombstone)
	if cause == nil {
		return nil
	}
	err := s.overwrite(tombstone)
	if err == nil {
		return nil
	}
	cause = errors.Join(cause, fmt.Errorf("overwrite record of %s: %w", tombstone.ID(), err))
	if err := s.Remove(tombstone.ID()); err != nil {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w: %w", ErrNoTombstone, cause)
}

// overwrite writes a record over the endpoint's earlier one, in a form without
// indentation, and fills what is left of the file with spaces. It takes no space
// on file systems that do not copy on write.
func (s *Store) overwrite(r Record) error {
	b, err := encodeShort(r)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, fileName(r.ID()))
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() > maxInPlace || info.Size() < int64(len(b)):
		return fmt.Errorf("%d bytes do not replace the %d bytes of %s (%s) in one step", len(b), info.Size(), path, info.Mode())
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, bytes.Repeat([]byte(" "), int(info.Size())-len(b))...))
	if err == nil {
		err = flush(f)
	}
	return errors.Join(err, f.Close())
}

// Remove deletes an endpoint's record. One that is not there is no error.
func (s *Store) Remove(id model.EndpointID) error {
	if err := os.Remove(filepath.Join(s.dir, fileName(id))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove record of %s: %w%s", id, err, s.remedy(err))
	}
	return nil
}
