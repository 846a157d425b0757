// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ConfName is the name of the configuration. Runtimes take the first file of
// the directory, by name.
const ConfName = "05-isthmus.conflist"

// Config says what goes where.
type Config struct {
	// Plugin is the executable to be installed, under the name that it has.
	Plugin string
	// BinDir and ConfDir are the runtime's directories, absolute paths.
	BinDir, ConfDir string
	// Socket is the agent's, as the plugin has to dial it.
	Socket string
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var errs []error
	for _, p := range []struct{ name, path string }{
		{"plugin", c.Plugin}, {"directory of CNI plugins", c.BinDir}, {"directory of CNI configurations", c.ConfDir},
	} {
		if !filepath.IsAbs(p.path) {
			errs = append(errs, fmt.Errorf("%s %q: must be an absolute path", p.name, p.path))
		}
	}
	if c.Socket == "" {
		errs = append(errs, errors.New("socket is empty: name that of the agent"))
	}
	return errors.Join(errs...)
}

// installed is where the plugin goes.
func (c Config) installed() string { return filepath.Join(c.BinDir, filepath.Base(c.Plugin)) }

// conf is where the configuration goes.
func (c Config) conf() string { return filepath.Join(c.ConfDir, ConfName) }

// WritePlugin copies the plugin, if the one there is another. It reports
// whether it had to.
func (c Config) WritePlugin() (bool, error) {
	content, err := os.ReadFile(c.Plugin)
	if err != nil {
		return false, fmt.Errorf("read CNI plugin: %w", err)
	}
	return replace(c.installed(), content, 0o755)
}

// WriteConf writes the configuration, if the one there is another. It reports
// whether it had to.
func (c Config) WriteConf() (bool, error) {
	// What a node cannot do is refused with a reason; a capability that is not
	// listed would be dropped by the runtime in silence.
	type plugin struct {
		Type         string          `json:"type"`
		Socket       string          `json:"socket"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	content, err := json.MarshalIndent(struct {
		CNIVersion string   `json:"cniVersion"`
		Name       string   `json:"name"`
		Plugins    []plugin `json:"plugins"`
	}{"1.0.0", "isthmus", []plugin{{
		Type:   strings.TrimSuffix(filepath.Base(c.Plugin), ".exe"),
		Socket: c.Socket, Capabilities: map[string]bool{"bandwidth": true, "portMappings": true},
	}}}, "", "  ")
	if err != nil {
		return false, fmt.Errorf("write CNI configuration: %w", err)
	}
	return replace(c.conf(), append(content, '\n'), 0o644)
}

// Remove takes both files away, the configuration first, and whatever an
// interrupted write left. What is gone already is no error.
func (c Config) Remove() error {
	var errs []error
	for _, path := range []string{c.conf(), c.installed()} {
		for _, p := range []string{path, part(path), aside(path)} {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove CNI file: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// Others names the configurations of others that the runtime would take
// instead of ours, sorted.
func (c Config) Others() ([]string, error) {
	all, err := Confs(c.ConfDir)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool { return name >= ConfName }), nil
}

// Confs names the CNI configurations in a directory, in the order in which
// runtimes look at them. A directory that does not exist has none.
func Confs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for CNI configurations: %w", err)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".conflist" || ext == ".conf" || ext == ".json") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// part is where the new content of a file is written, aside where a running
// executable is moved to. Runtimes take neither for a configuration.
func part(path string) string  { return path + ".part" }
func aside(path string) string { return path + ".old" }

// replace gives a file its content and mode by one rename. A file that has them
// is left alone. It reports whether it wrote.
func replace(path string, content []byte, mode fs.FileMode) (bool, error) {
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) && hasMode(path, mode) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("create CNI directory: %w", err)
	}
	if err := writeSynced(part(path), content, mode); err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreMissing(os.Remove(part(path))))
	}
	if err := rename(part(path), path); err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreMissing(os.Remove(part(path))))
	}
	return true, nil
}

func writeSynced(path string, content []byte, mode fs.FileMode) error {
	// A part that a killed agent left may have another mode.
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode) // the umask does not count
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
