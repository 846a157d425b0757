// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// configFlag is the flag that names the configuration file.
const configFlag = "config"

// maxConfig is the largest configuration file, in bytes.
const maxConfig = 1 << 20

// RegisterConfig adds the flag --config.
func RegisterConfig(f *pflag.FlagSet) {
	f.String(configFlag, "", "YAML file with values of other flags by their names without dashes, as in log-level: debug; read at the start")
}

// ReadConfig sets the flags of a command that the file of --config names. A flag that the command line has too is an
// error, so that no value is ignored silently. Settings of another command that reads the same file are ignored: others
// has their flags, or is nil.
func ReadConfig(f, others *pflag.FlagSet) error {
	path, err := f.GetString(configFlag)
	if err != nil || path == "" {
		return nil
	}
	text, err := readBounded(path)
	if err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	root, err := oneDocument(text)
	if err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	if root == nil {
		return nil
	}
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("--config %s: line %d: want lines such as log-level: debug", path, root.Line)
	}
	given := make(map[string]bool)
	f.Visit(func(one *pflag.Flag) { given[one.Name] = true })
	var errs []error
	seen := make(map[string]bool)
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if !noSetting(key.Value) && f.Lookup(key.Value) == nil && others != nil && others.Lookup(key.Value) != nil {
			continue
		}
		if err := setFlag(f, key.Value, value, given, seen); err != nil {
			errs = append(errs, fmt.Errorf("--config %s: line %d: %s: %w", path, key.Line, key.Value, err))
		}
		seen[key.Value] = true
	}
	return errors.Join(errs...)
}

// oneDocument returns the root of a file of YAML; nil if it has comments only. A second document is an error, as one of the two
// would be ignored.
func oneDocument(text []byte) (root *yaml.Node, err error) {
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		err := d.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF):
			return root, nil
		case err != nil:
			return nil, fmt.Errorf("%s: write valid YAML", strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: "))
		case len(doc.Content) == 0 || doc.Content[0].Tag == "!!null":
		case root != nil:
			return nil, fmt.Errorf("line %d: a second document begins: write all settings into one", doc.Content[0].Line)
		default:
			root = doc.Content[0]
		}
	}
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("more than %d bytes", maxConfig)
	}
	return text, err
}

// noSetting reports whether a flag has a meaning on the command line only.
func noSetting(name string) bool { return name == configFlag || name == "help" || name == "version" }

// setFlag sets a flag to a scalar, the elements of a list, or NAME=VALUE for each entry of a mapping.
func setFlag(f *pflag.FlagSet, name string, value *yaml.Node, given, seen map[string]bool) error {
	flag := f.Lookup(name)
	switch {
	case flag == nil || noSetting(name):
		return errors.New("no such setting: give the name of a flag without dashes, see --help")
	case seen[name]:
		return errors.New("is there twice: write it once")
	case given[name]:
		return fmt.Errorf("--%s is on the command line too: remove one of them", name)
	}
	values, err := valuesOf(value)
	if err != nil {
		return err
	}
	list, isList := flag.Value.(pflag.SliceValue)
	switch {
	case value.Kind == yaml.SequenceNode && !isList:
		return errors.New("takes no list: give one value")
	case value.Kind == yaml.SequenceNode && len(values) == 0:
		if list.Replace(nil) != nil || len(list.GetSlice()) > 0 {
			return errors.New("takes no empty list: remove the line")
		}
		flag.Changed = true
	}
	for _, v := range values {
		if err := f.Set(name, v); err != nil {
			if text := accepted[flag.Value.Type()]; text != "" {
				return fmt.Errorf("%q: give %s", v, text)
			}
			if cause := errors.Unwrap(err); cause != nil { // without the name of the flag
				err = cause
			}
			return fmt.Errorf("%q: %w", v, err)
		}
	}
	return nil
}

// plain returns the text of a scalar. Helm writes large numbers as 1.048576e+06.
func plain(n *yaml.Node) string {
	if n.Tag == "!!float" && n.Style == 0 {
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil && v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10)
		}
	}
	return n.Value
}

// valuesOf lists the texts of a value.
func valuesOf(n *yaml.Node) ([]string, error) {
	switch {
	case n.Kind == yaml.AliasNode:
		return valuesOf(n.Alias)
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return []string{plain(n)}, nil
	case n.Kind == yaml.SequenceNode:
		var all []string
		for _, e := range n.Content {
			if e.Kind != yaml.ScalarNode || e.Tag == "!!null" {
				return nil, fmt.Errorf("line %d: want a list of plain values", e.Line)
			}
			all = append(all, plain(e))
		}
		return all, nil
	case n.Kind == yaml.MappingNode:
		var all []string
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i+1].Kind != yaml.ScalarNode || n.Content[i+1].Tag == "!!null" {
				return nil, fmt.Errorf("line %d: want NAME: VALUE", n.Content[i].Line)
			}
			all = append(all, n.Content[i].Value+"="+plain(n.Content[i+1]))
		}
		return all, nil
	}
	return nil, errors.New("has no value: give one, or remove the line")
}
