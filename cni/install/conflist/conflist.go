// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// MaxSize bounds a configuration, in bytes, and maxWrap a list that Wrap makes of one.
const (
	MaxSize = 1 << 20
	maxWrap = 2 * MaxSize
)

// maxPlugins bounds the plugins of a list.
const maxPlugins = 100

// modePolicy is the mode of an entry that this package adds. Entries of other modes belong to administrators.
const modePolicy = "policy"

// versions are those of the CNI specification in which plugins pass results on.
var versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// ErrNoNetwork is wrapped by errors about a configuration that makes no interface of pods.
var ErrNoNetwork = errors.New("it configures no network of pods")

// Entry is the entry of isthmus-cni.
type Entry struct {
	// Type is the name of the plugin's executable, without .exe.
	Type string `json:"type"`
	// Mode is set by this package.
	Mode string `json:"mode"`
	// Socket is the agent's address.
	Socket string `json:"socket"`
}

func (e Entry) text() []byte {
	e.Mode = modePolicy
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // an Entry holds strings only
	}
	return b
}

// element is one plugin of a list: the bytes [start, end) of the text.
type element struct {
	start, end int
	Type, Mode string
}

// list is a parsed list.
type list struct {
	text    []byte
	plugins []element
	// version and versions are the keys cniVersion and cniVersions.
	version  string
	versions []string
}

// parse reads the parts of a list that this package edits, as libcni does.
func parse(text []byte) (*list, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("it has %d bytes: at most %d are allowed", len(text), MaxSize)
	}
	if !json.Valid(text) {
		return nil, errors.New("it is not valid JSON")
	}
	l := &list{text: text}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	seen := make(map[string]bool)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string) // the JSON is valid
		switch key {
		case "plugins", "cniVersion", "cniVersions":
			if seen[key] {
				return nil, fmt.Errorf("it has the key %s twice: remove one", key)
			}
			seen[key] = true
		}
		switch key {
		case "plugins":
			err = l.readPlugins(d)
		case "cniVersion":
			err = decode(d, key, &l.version)
		case "cniVersions":
			err = decode(d, key, &l.versions)
		default:
			var skipped json.RawMessage
			err = d.Decode(&skipped)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

func decode(d *json.Decoder, key string, into any) error {
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (l *list) readPlugins(d *json.Decoder) error {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("plugins: it is not an array")
	}
	for d.More() {
		if len(l.plugins) == maxPlugins {
			return fmt.Errorf("plugins: more than %d: remove some", maxPlugins)
		}
		var raw json.RawMessage
		if err := decode(d, "plugins", &raw); err != nil {
			return err
		}
		end := int(d.InputOffset())
		e := element{start: end - len(raw), end: end}
		if !bytes.Equal(l.text[e.start:e.end], raw) {
			return errors.New("plugins: the place of an element in the text is unclear")
		}
		var plugin struct{ Type, Mode any }
		if err := json.Unmarshal(raw, &plugin); err != nil {
			return fmt.Errorf("plugins[%d]: it is not an object", len(l.plugins))
		}
		e.Type, _ = plugin.Type.(string)
		e.Mode, _ = plugin.Mode.(string)
		l.plugins = append(l.plugins, e)
	}
	_, err := d.Token()
	return err
}

// check refuses lists to which the entry cannot be added. It can be removed from them.
func (l *list) check() error {
	if len(l.plugins) == 0 {
		return errors.New("plugins: it has none: list them in this file, as runtimes also read those of a directory")
	}
	if err := checkVersion(l.version, l.versions); err != nil {
		return err
	}
	return loadable(l.text)
}

func checkVersion(version string, offered []string) error {
	for _, v := range append(slices.Clip(offered), version) {
		if slices.Contains(versions, v) {
			return nil
		}
	}
	return fmt.Errorf("cniVersion %q: plugins cannot be chained: use one of %s", version, strings.Join(versions, ", "))
}

// loadable returns an error for a list that runtimes refuse. Some then use the next configuration.
func loadable(text []byte) error {
	if _, err := libcni.NetworkConfFromBytes(text); err != nil {
		return fmt.Errorf("runtimes refuse it: %w", err)
	}
	return nil
}

// Add returns the list with exactly one entry, after the others. An equal entry after another plugin stays
// where it is.
func Add(text []byte, e Entry) ([]byte, error) {
	l, err := parse(text)
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, err
	}
	own, others := l.own(e.Type), len(l.plugins)
	others -= len(own)
	switch {
	case slices.ContainsFunc(l.plugins, func(p element) bool { return p.Type == e.Type && p.Mode != modePolicy }):
		return nil, fmt.Errorf("plugins: %s is in it with another mode than policy: remove that entry", e.Type)
	case others == 0:
		return nil, fmt.Errorf("plugins: %s is the only one: %w", e.Type, ErrNoNetwork)
	case others == 1 && slices.ContainsFunc(l.plugins, func(p element) bool { return p.Type == "loopback" }):
		return nil, fmt.Errorf("plugins: loopback is the only one: %w", ErrNoNetwork)
	case len(own) == 1 && own[0] > 0 && l.equal(own[0], e.text()):
		return text, nil
	}
	if l, err = parse(l.without(own)); err != nil {
		return nil, err
	}
	last := l.plugins[len(l.plugins)-1]
	// The entry gets the white space before the last element, which shows the style of the list.
	before := last.start
	for before > 0 && strings.ContainsRune(" \t\r\n", rune(l.text[before-1])) {
		before--
	}
	added := slices.Concat([]byte(","), l.text[before:last.start], e.text())
	result := slices.Insert(slices.Clone(l.text), last.end, added...)
	if _, err := parse(result); err != nil {
		return nil, fmt.Errorf("with the entry of %s: %w", e.Type, err) // Remove could not read it
	}
	return result, nil
}

// Remove returns the list without entries of mode policy, and whether there was one. A text that is not a list
// has none.
func Remove(text []byte, plugin string) ([]byte, bool) {
	l, err := parse(text)
	if err != nil || len(l.own(plugin)) == 0 || len(l.own(plugin)) == len(l.plugins) {
		return text, false
	}
	return l.without(l.own(plugin)), true
}

// own returns the indices of the entries of mode policy.
func (l *list) own(plugin string) (all []int) {
	for i, p := range l.plugins {
		if p.Type == plugin && p.Mode == modePolicy {
			all = append(all, i)
		}
	}
	return all
}

func (l *list) equal(i int, entry []byte) bool {
	var have, want any
	p := l.plugins[i]
	return json.Unmarshal(l.text[p.start:p.end], &have) == nil && json.Unmarshal(entry, &want) == nil && reflect.DeepEqual(have, want)
}

// without returns the text without some, but not all, elements: each goes with the comma that separates it
// from the one before, or from the next if it is the first.
func (l *list) without(drop []int) []byte {
	var text []byte
	from := 0
	for _, i := range drop {
		begin, end := l.plugins[i].start, l.plugins[i].end
		switch {
		case i > 0 && !l.leads(i, drop):
			begin = l.plugins[i-1].end
		default:
			end = l.plugins[i+1].start
		}
		text = append(text, l.text[from:begin]...)
		from = end
	}
	return append(text, l.text[from:]...)
}

// leads reports whether all elements up to i are dropped.
func (l *list) leads(i int, drop []int) bool {
	for j := range i {
		if !slices.Contains(drop, j) {
			return false
		}
	}
	return true
}

// Wraps is the key of a list that Wrap makes. Its value is the name of the wrapped file.
const Wraps = "isthmusWraps"

// Wrap returns a list of a configuration of one plugin, which the file of that name holds, and the entry.
func Wrap(text []byte, e Entry, file string) ([]byte, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("it has %d bytes: at most %d are allowed", len(text), MaxSize)
	}
	var conf struct {
		CNIVersion, Name, Type string
		Plugins                json.RawMessage
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return nil, fmt.Errorf("it is not a JSON object: %w", err)
	}
	switch {
	case conf.Plugins != nil && conf.Type == "":
		return nil, errors.New("it holds a list, which runtimes read from files with the suffix .conflist only: rename it")
	case conf.Type == "" || conf.Name == "":
		return nil, errors.New("it has no type or no name: set both")
	case conf.Type == "loopback":
		return nil, fmt.Errorf("loopback is its plugin: %w", ErrNoNetwork)
	case conf.Type == e.Type:
		return nil, fmt.Errorf("%s is its only plugin: %w", e.Type, ErrNoNetwork)
	}
	if err := checkVersion(conf.CNIVersion, nil); err != nil {
		return nil, err
	}
	list, err := json.MarshalIndent(struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Wraps      string            `json:"isthmusWraps"`
		Plugins    []json.RawMessage `json:"plugins"`
	}{conf.CNIVersion, conf.Name, file, []json.RawMessage{text, e.text()}}, "", "  ")
	if err == nil && len(list) > maxWrap {
		err = fmt.Errorf("a list of it has %d bytes: at most %d are allowed", len(list), maxWrap)
	}
	if err == nil {
		err = loadable(list)
	}
	return list, err
}

// Wrapped returns the name of the file that Wrap made a list of, or "" for any other text.
func Wrapped(text []byte) string {
	var l struct {
		Wraps string `json:"isthmusWraps"`
	}
	if len(text) > maxWrap || json.Unmarshal(text, &l) != nil {
		return ""
	}
	return l.Wraps
}

// Summary holds the properties of a network that its configuration shows.
type Summary struct {
	Name, CNIVersion string
	// Plugins are the types of the plugins, in order.
	Plugins []string
	// Chained is true if the list has an entry of mode policy of the plugin.
	Chained bool
}

// Summarise reads a list, or a configuration of one plugin.
func Summarise(text []byte, plugin string) (Summary, error) {
	type entry struct{ Type, Mode string }
	var conf struct {
		entry
		Name, CNIVersion string
		Plugins          []entry
	}
	if len(text) > maxWrap {
		return Summary{}, fmt.Errorf("it has more than %d bytes", maxWrap)
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return Summary{}, fmt.Errorf("it is not a CNI configuration: %w", err)
	}
	if len(conf.Plugins) == 0 {
		conf.Plugins = []entry{conf.entry}
	}
	s := Summary{Name: conf.Name, CNIVersion: conf.CNIVersion}
	for _, p := range conf.Plugins {
		s.Plugins = append(s.Plugins, p.Type)
		s.Chained = s.Chained || p.Type == plugin && p.Mode == modePolicy
	}
	return s, nil
}
