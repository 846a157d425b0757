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
	"runtime"
	"slices"
)

// ConfName is the name of the configuration. Runtimes use the first file of the directory, by name.
const ConfName = "05-isthmus.conflist"

// Config maps files to their destinations.
type Config struct {
	// Plugin is the executable to install, under its own name.
	Plugin string
	// BinDir and ConfDir are the runtime's directories, absolute paths.
	BinDir, ConfDir string
	// Socket is the agent's address for the plugin.
	Socket string
	// Chained adds the plugin to the configuration of another network, instead of installing one of its own.
	Chained bool
}

// Validate reports everything that is wrong with the Config.
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
		errs = append(errs, errors.New("socket is empty: set the address of the agent's socket"))
	}
	return errors.Join(errs...)
}

// installed returns the path of the installed plugin.
func (c Config) installed() string { return filepath.Join(c.BinDir, filepath.Base(c.Plugin)) }

// conf returns the path of the configuration.
func (c Config) conf() string { return filepath.Join(c.ConfDir, ConfName) }

// WritePlugin copies the plugin, unless the installed one is equal. It reports whether it wrote.
func (c Config) WritePlugin() (bool, error) {
	content, err := os.ReadFile(c.Plugin)
	if err != nil {
		return false, fmt.Errorf("read CNI plugin: %w", err)
	}
	return replace(c.installed(), content, 0o755, "")
}

// WriteConf writes the configuration, unless the installed one is equal. It reports whether it wrote.
func (c Config) WriteConf() (bool, error) {
	// The configuration lists all capabilities that the system can use. A node refuses what it cannot do,
	// with a reason. A runtime silently drops a capability that is not listed.
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
		Type:   c.pluginType(),
		Socket: c.Socket, Capabilities: capabilities(runtime.GOOS),
	}}}, "", "  ")
	if err != nil {
		return false, fmt.Errorf("write CNI configuration: %w", err)
	}
	return replace(c.conf(), append(content, '\n'), 0o644, "")
}

// capabilities returns what runtimes shall pass to the plugin on a system. Only Windows needs dns: HNS
// configures the resolvers of its pods. On Linux the runtime writes resolv.conf itself.
func capabilities(system string) map[string]bool {
	all := map[string]bool{"bandwidth": true, "portMappings": true}
	if system == "windows" {
		all["dns"] = true
	}
	return all
}

// Remove removes both files, the configuration first, the plugin's entries in configurations of other networks,
// and the remains of an interrupted write. A missing file is not an error. The plugin stays if an entry cannot
// be removed: without it that network could start no pod.
func (c Config) Remove() error {
	if err := c.unchain(); err != nil {
		return fmt.Errorf("remove the plugin from CNI configurations: %w", err)
	}
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

// Others returns the configurations of other networks that the runtime would use instead of ours, sorted.
func (c Config) Others() ([]string, error) {
	all, err := Confs(c.ConfDir)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool { return name >= ConfName }), nil
}

// Confs returns the names of the CNI configurations in a directory, in the order in which runtimes read
// them. A missing directory has none.
func Confs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".conflist" || ext == ".conf" || ext == ".json") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// part is the path of a file's new content during a write. aside is the path to which a running executable
// is moved. Runtimes ignore both.
func part(path string) string  { return path + ".part" }
func aside(path string) string { return path + ".old" }

// replace sets a file's content and mode by one rename, and gives it the owner and access list of like, if that names a file. It leaves a
// file alone that has content and mode already. It reports whether it wrote.
func replace(path string, content []byte, mode fs.FileMode, like string) (bool, error) {
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) && hasMode(path, mode) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("create CNI directory: %w", err)
	}
	if err := writeSynced(part(path), content, mode, like); err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreMissing(os.Remove(part(path))))
	}
	if err := rename(part(path), path); err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreMissing(os.Remove(part(path))))
	}
	return true, nil
}

// writeSynced makes a file. The content is written once the file has the owner and access list of like, if that names one.
func writeSynced(path string, content []byte, mode fs.FileMode, like string) error {
	// A part that a killed agent left may have another mode.
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if like != "" {
		err = copyAccess(like, path)
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Chmod(mode) // independent of the umask
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
