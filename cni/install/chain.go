// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cni/install/conflist"
)

// wrapSuffix ends the name of a list that wraps a configuration of one plugin. A hyphen sorts before the dot of
// the wrapped file, so that runtimes read the list first: 10-x-isthmus.conflist before 10-x.conf.
const wrapSuffix = "-isthmus.conflist"

var (
	// errChanged reports that another process wrote the file in the meantime.
	errChanged = errors.New("the file changed meanwhile")
	errLink    = errors.New("it is not a regular file: replace the link by its target")
)

// Chain adds isthmus-cni to the configuration that the runtime uses: the first one, by name, that is valid. It
// edits a list in place, and wraps a configuration of one plugin in a list of its own. It returns the name of
// the list, and whether it wrote.
//
// The error joins one for each configuration that precedes the list but is not valid: containerd does not
// skip those, CRI-O does.
func (c Config) Chain() (name string, wrote bool, err error) {
	names, err := Confs(c.ConfDir)
	if err != nil {
		return "", false, err
	}
	if slices.Contains(names, ConfName) {
		return "", false, fmt.Errorf("CNI configuration %s in %s makes interfaces of pods, from an agent of mode full: delete or drain the pods of this node and run isthmus-agent uninstall, or use mode full", ConfName, c.ConfDir)
	}
	var errs []error
	for _, n := range names {
		if strings.HasSuffix(n, wrapSuffix) && c.wraps(n) != "" {
			continue
		}
		name, wrote, err := c.chain(n)
		if err == nil {
			return name, wrote, errors.Join(append(errs, c.removeWraps(name))...)
		}
		if !errors.Is(err, conflist.ErrNoNetwork) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("CNI configuration %s in %s cannot be chained: %w", n, c.ConfDir, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("CNI configuration of another network is missing in %s, and mode policy has none of its own: install the network, or use mode full", c.ConfDir))
	}
	// A list whose original disappeared would start pods without the network that it names.
	return "", false, errors.Join(append(errs, c.removeWraps(""))...)
}

// chain adds the entry to one configuration.
func (c Config) chain(name string) (string, bool, error) {
	text, mode, err := c.read(name)
	if err != nil {
		return "", false, err
	}
	entry := conflist.Entry{Type: c.pluginType(), Socket: c.Socket}
	if filepath.Ext(name) != ".conflist" {
		list, err := conflist.Wrap(text, entry, name)
		if err != nil {
			return "", false, err
		}
		wrap := wrapOf(name)
		wrote, err := replace(filepath.Join(c.ConfDir, wrap), append(list, '\n'), mode, filepath.Join(c.ConfDir, name))
		return wrap, wrote, err
	}
	list, err := conflist.Add(text, entry)
	if err != nil {
		return "", false, err
	}
	wrote, err := c.edit(name, text, list, mode)
	return name, wrote, err
}

// wrapOf is the name of the list that wraps a configuration of one plugin.
func wrapOf(name string) string { return strings.TrimSuffix(name, filepath.Ext(name)) + wrapSuffix }

// edit replaces a file of another component, unless it changed since it was read.
func (c Config) edit(name string, was, list []byte, mode fs.FileMode) (bool, error) {
	if bytes.Equal(was, list) {
		return false, nil
	}
	// A process that writes between the comparison below and the rename loses its text. There is no lock that
	// other networks respect; the time in between is some microseconds.
	path := filepath.Join(c.ConfDir, name)
	if err := writeSynced(part(path), list, mode, path); err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreMissing(os.Remove(part(path))))
	}
	now, _, err := c.read(name)
	if err == nil && !bytes.Equal(now, was) {
		err = errChanged
	}
	if err == nil {
		err = rename(part(path), path)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreMissing(os.Remove(part(path))))
	}
	return true, nil
}

// read reads a configuration and its permissions. A link is refused: a rename would replace it by a file.
func (c Config) read(name string) ([]byte, fs.FileMode, error) {
	path := filepath.Join(c.ConfDir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errLink
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, conflist.MaxSize+1)) // conflist refuses the longest
	return text, info.Mode().Perm(), err
}

// wraps returns the name of the file that a list of ours wraps, or "".
func (c Config) wraps(name string) string {
	text, err := os.ReadFile(filepath.Join(c.ConfDir, name))
	if err != nil {
		return ""
	}
	return conflist.Wrapped(text)
}

// removeWraps removes the lists that wrap configurations, but the one in use.
func (c Config) removeWraps(keep string) error {
	names, err := Confs(c.ConfDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if n != keep && strings.HasSuffix(n, wrapSuffix) && c.wraps(n) != "" {
			errs = append(errs, ignoreMissing(os.Remove(filepath.Join(c.ConfDir, n))))
		}
	}
	return errors.Join(errs...)
}

// unchain removes the entry from all configurations of the directory, and the lists that wrap some.
func (c Config) unchain() error {
	errs := []error{c.removeWraps("")}
	names, err := Confs(c.ConfDir)
	if err != nil {
		return err
	}
	for _, n := range names {
		path := filepath.Join(c.ConfDir, n)
		for _, p := range []string{path, filepath.Join(c.ConfDir, wrapOf(n))} { // of an agent that was killed while it wrote
			errs = append(errs, ignoreMissing(os.Remove(part(p))))
		}
		for {
			text, mode, err := c.read(n)
			if errors.Is(err, errLink) || errors.Is(err, fs.ErrNotExist) {
				break // not edited by this program
			}
			if err != nil {
				errs = append(errs, err)
				break
			}
			list, was := conflist.Remove(text, c.pluginType())
			if !was {
				break
			}
			if _, err := c.edit(n, text, list, mode); !errors.Is(err, errChanged) {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// pluginType is the type of the plugin in CNI configurations.
func (c Config) pluginType() string { return strings.TrimSuffix(filepath.Base(c.Plugin), ".exe") }

// Used summarises the configuration that a runtime uses: the first one, by name, that can be read. The name is
// empty if there is none.
func Used(dir, plugin string) (name string, s conflist.Summary, err error) {
	names, err := Confs(dir)
	if err != nil {
		return "", s, err
	}
	for _, name := range names {
		text, _, err := Config{ConfDir: dir}.read(name)
		if err != nil {
			continue
		}
		if s, err := conflist.Summarise(text, plugin); err == nil {
			return name, s, nil
		}
	}
	return "", s, nil
}
