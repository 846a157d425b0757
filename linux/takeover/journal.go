// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// journalName is the file of a Progress in the state directory.
const journalName = "migration.json"

// maxJournal bounds that file, in bytes: 1,000 pods of 2 KiB and their steps.
const maxJournal = 16 << 20

// Path returns the path of the file of a Progress in a state directory.
func Path(dir string) string { return filepath.Join(dir, journalName) }

// Load reads the Progress in a state directory; nil if there is none.
func Load(dir string) (*Progress, error) {
	path := Path(dir)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the migration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxJournal+1))
	if err != nil {
		return nil, fmt.Errorf("read the migration: %w", err)
	}
	p, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("read the migration in %s: %w", path, err)
	}
	return p, nil
}

// decode parses and validates a Progress.
func decode(text []byte) (*Progress, error) {
	p := &Progress{}
	if len(text) > maxJournal {
		return nil, fmt.Errorf("it has more than %d bytes", maxJournal)
	}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, err
	}
	if p.Version != version {
		return nil, fmt.Errorf("its version is %d, not %d: use the isthmusctl that wrote it", p.Version, version)
	}
	if p.Done < 0 || p.Done > len(p.Plan.Steps) {
		return nil, fmt.Errorf("%d of %d steps cannot be done", p.Done, len(p.Plan.Steps))
	}
	if !filepath.IsAbs(p.Plan.Network.ConfDir) {
		return nil, fmt.Errorf("the directory of configurations %q is not an absolute path", p.Plan.Network.ConfDir)
	}
	for i, s := range p.Plan.Steps {
		if s.Pod < 0 || s.Pod > 0 && s.Pod >= len(p.Plan.Pods) || s.Kind.ofPod() && len(p.Plan.Pods) == 0 ||
			s.Route < 0 || s.Route > 0 && s.Route >= len(p.Plan.Routes) || s.Kind == OwnRoute && len(p.Plan.Routes) == 0 {
			return nil, fmt.Errorf("step %d names a pod or route that is not in the plan", i)
		}
		if s.Kind == SetSysctl && (strings.Contains(s.Path, "..") || filepath.IsAbs(s.Path)) {
			return nil, fmt.Errorf("step %d names %q, which is not a sysctl", i, s.Path)
		}
	}
	for _, pod := range p.Plan.Pods {
		for path := range pod.Sysctls {
			if strings.Contains(path, "..") || filepath.IsAbs(path) {
				return nil, fmt.Errorf("pod %s/%s names %q, which is not a sysctl", pod.Namespace, pod.Name, path)
			}
		}
		if err := errors.Join(pod.Was.Validate(), pod.Record.Validate()); err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return p, nil
}

// Save returns the Journal of a state directory. It replaces the file atomically, and keeps it from other users.
func Save(dir string) Journal {
	return func(p *Progress) error {
		text, err := json.Marshal(p)
		if err == nil {
			err = replace(Path(dir), append(text, '\n'))
		}
		if err != nil {
			return fmt.Errorf("store the progress of the migration: %w", err)
		}
		return nil
	}
}

// Forget removes the Progress of a state directory.
func Forget(dir string) error {
	if err := os.Remove(Path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the progress of the migration: %w", err)
	}
	return nil
}

// replace writes a file that only its owner may read. It makes the change durable across a power failure.
func replace(path string, text []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
