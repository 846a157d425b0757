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
	// asideSuffix marks damaged files that were moved aside.
	asideSuffix = ".broken"
	// maxRecord bounds a file, in bytes: a pod with 1000 host ports needs 140 KiB.
	maxRecord = 256 << 10
	// maxInPlace bounds a file that is overwritten in place, in bytes. The kernel copies that much in one
	// step, so that a killed process leaves the old or the new content.
	maxInPlace = 4 << 10
)

// ErrNoTombstone is returned by Release if it removed the record because it could not write a tombstone.
var ErrNoTombstone = errors.New("the record is removed without a tombstone")

// Store is a directory of records.
type Store struct{ dir string }

// Open creates the directory, restricted to its owner, if it is missing. It removes the temporary files of
// unfinished writes. No other process may use the directory at the same time.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open record directory %q: the path must be absolute", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create record directory: %w", err)
	}
	if err := closeToOthers(dir); err != nil {
		return nil, fmt.Errorf("restrict record directory to its owner: %w", err)
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

// closeToOthers sets the mode of a directory. If the mode is right it writes nothing, so that an agent also
// starts on a read-only file system.
func closeToOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() == 0o700 {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// fileName returns a hash. Ids may be longer than file names can be, and may differ only in case.
func fileName(id model.EndpointID) string {
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:16]) + recordSuffix
}

// Load reads all records, in the order of their creation. It moves damaged files aside and reports them in
// problems; the store then no longer knows their endpoints. An error means that the store is unchanged and
// must not be used. A record that a newer agent wrote is such an error.
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
			return nil, nil, fmt.Errorf("move damaged record %s aside: %w", path, err)
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

// Read reads all records of a directory without changing it, so that its agent may run. A damaged record is an
// error. A record that is removed meanwhile may be missing. A missing directory has none.
func Read(dir string) (records []Record, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read record directory: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), recordSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		r, err := readRecord(path, e.Type())
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("endpoint record %s: %w", path, err)
		}
		records = append(records, r)
	}
	return records, nil
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

// moveAside renames a file to an unused name.
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

// Put replaces the endpoint's record. After success the record exists for as long as the endpoint can, even
// if this process is killed (ADR 33). After an error either the old or the new record exists.
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

// Restore writes a record again whose file another process removed. It reports whether it did.
func (s *Store) Restore(r Record) (bool, error) {
	if _, err := os.Lstat(filepath.Join(s.dir, fileName(r.ID()))); !errors.Is(err, os.ErrNotExist) {
		return false, nil // Put replaces what is there
	}
	err := s.Put(r)
	return err == nil, err
}

// remedy returns the remedy for an error of a write, or "".
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
	if errors.Is(err, os.ErrNotExist) { // another process removed the directory
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			f, err = os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		}
	}
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

// Release replaces the endpoint's record with a tombstone from Record.Tombstone. It must succeed on a full
// disk, because kubelet evicts pods when the disk is full. Without space for another file it overwrites the
// record in place. If that fails too it removes the record, and the error is ErrNoTombstone with the cause.
// After any other error the record still exists.
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

// overwrite replaces the content of the endpoint's record in place. It encodes without indentation and
// fills the rest of the file with spaces. On file systems without copy-on-write this needs no space.
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
		return fmt.Errorf("%d bytes do not fit into the %d bytes of %s (%s) in one step", len(b), info.Size(), path, info.Mode())
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

// Remove deletes an endpoint's record. A missing record is not an error.
func (s *Store) Remove(id model.EndpointID) error {
	if err := os.Remove(filepath.Join(s.dir, fileName(id))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove record of %s: %w%s", id, err, s.remedy(err))
	}
	return nil
}
