// SPDX-License-Identifier: Apache-2.0

package conflist_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/isthmus-net/isthmus/cni/install/conflist"
)

var entry = conflist.Entry{Type: "isthmus-cni", Socket: "/run/isthmus/agent.sock"}

const added = `{"type":"isthmus-cni","mode":"policy","socket":"/run/isthmus/agent.sock"}`

// flannel is the list that flannel installs (Documentation/kube-flannel.yml of v0.28.10).
const flannel = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

func TestAddAndRemove(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"flannel": {flannel, strings.Replace(flannel, "    }\n  ]", "    },\n    "+added+"\n  ]", 1)},
		"compact": {`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"}],"z":1e40}`,
			`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"},` + added + `],"z":1e40}`},
		"white space": {" {\"plugins\" : [ {\"type\":\"ptp\"}\t, \r\n{\"type\":\"b\"} \t] , \"name\":\"n\",\"cniVersion\":\"0.3.0\"}\n\n",
			" {\"plugins\" : [ {\"type\":\"ptp\"}\t, \r\n{\"type\":\"b\"}, \r\n" + added + " \t] , \"name\":\"n\",\"cniVersion\":\"0.3.0\"}\n\n"},
		"several versions": {`{"cniVersion":"2.0.0","name":"n","cniVersions":["1.1.0","2.0.0"],"plugins":[{"type":"ptp"}]}`,
			`{"cniVersion":"2.0.0","name":"n","cniVersions":["1.1.0","2.0.0"],"plugins":[{"type":"ptp"},` + added + `]}`},
		"brackets in text": {`{"cniVersion":"1.0.0","name":"]}","plugins":[{"type":"a","x":"[{\"plugins\":["}]}`,
			`{"cniVersion":"1.0.0","name":"]}","plugins":[{"type":"a","x":"[{\"plugins\":["},` + added + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := conflist.Add([]byte(c.text), entry)
			if err != nil || string(got) != c.want {
				t.Fatalf("added, %v:\n%s\nwant\n%s", err, got, c.want)
			}
			if again, err := conflist.Add(got, entry); err != nil || !bytes.Equal(again, got) {
				t.Errorf("added again, %v:\n%s", err, again)
			}
			if back, was := conflist.Remove(got, entry.Type); !was || string(back) != c.text {
				t.Errorf("removed: %v\n%s", was, back)
			}
			if same, was := conflist.Remove([]byte(c.text), entry.Type); was || string(same) != c.text {
				t.Errorf("removed from a list without it: %v\n%s", was, same)
			}
		})
	}
}

// TestLibcniReads checks that runtimes read the result as the original with one additional plugin.
func TestLibcniReads(t *testing.T) {
	text, err := conflist.Add([]byte(flannel), entry)
	if err != nil {
		t.Fatal(err)
	}
	l, err := libcni.ConfListFromBytes(text)
	if err != nil || l.Name != "cbr0" || l.CNIVersion != "0.3.1" || len(l.Plugins) != 3 || l.Plugins[2].Network.Type != "isthmus-cni" {
		t.Errorf("got %+v, %v", l, err)
	}
	text, err = conflist.Wrap([]byte(`{"cniVersion":"0.4.0","name":"n","type":"bridge","unknown":{"b":1,"a":2}}`), entry, "10-n.conf")
	if err != nil {
		t.Fatal(err)
	}
	l, err = libcni.ConfListFromBytes(text)
	if err != nil || l.Name != "n" || l.CNIVersion != "0.4.0" || len(l.Plugins) != 2 || l.Plugins[0].Network.Type != "bridge" ||
		!bytes.Contains(l.Plugins[0].Bytes, []byte("unknown")) || l.Plugins[1].Network.Type != "isthmus-cni" || conflist.Wrapped(text) != "10-n.conf" {
		t.Errorf("got %+v, %v", l, err)
	}
}

func TestAddRepairs(t *testing.T) {
	const other = `{"type":"isthmus-cni","mode":"policy","socket":"/old.sock"}`
	list := func(plugins string) string { return `{"cniVersion":"1.0.0","name":"n","plugins":[` + plugins + `]}` }
	for name, c := range map[string]struct{ plugins, want string }{
		"another socket":     {`{"type":"ptp"}, ` + other, `{"type":"ptp"},` + added},
		"first":              {added + `, {"type":"ptp"}`, `{"type":"ptp"},` + added},
		"twice":              {`{"type":"ptp"},` + added + ` ,{"type":"portmap"},` + added, `{"type":"ptp"} ,{"type":"portmap"},` + added},
		"first and last":     {added + `,` + added + `,{"type":"ptp"},` + added, `{"type":"ptp"},` + added},
		"in the middle":      {`{"type":"ptp"},` + added + `,{"type":"portmap"}`, `{"type":"ptp"},` + added + `,{"type":"portmap"}`},
		"marshalled by them": {`{"type":"ptp"},{"mode":"policy", "socket":"/run/isthmus/agent.sock","type":"isthmus-cni"}`, `{"type":"ptp"},{"mode":"policy", "socket":"/run/isthmus/agent.sock","type":"isthmus-cni"}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := conflist.Add([]byte(list(c.plugins)), entry); err != nil || string(got) != list(c.want) {
				t.Errorf("%v\n%s\nwant\n%s", err, got, list(c.want))
			}
		})
	}
	// Text that others added after the entry stays.
	if got, was := conflist.Remove([]byte(list(`{"type":"ptp"}, `+added+` , {"type":"istio-cni"}`)), entry.Type); !was || string(got) != list(`{"type":"ptp"} , {"type":"istio-cni"}`) {
		t.Errorf("removed %v: %s", was, got)
	}
}

func TestRefuses(t *testing.T) {
	list := func(plugins string) string { return `{"cniVersion":"1.0.0","name":"n","plugins":[` + plugins + `]}` }
	for text, want := range map[string]string{
		``: "not valid JSON", `[]`: "not a JSON object", `{"plugins":[{}]`: "not valid JSON", `null`: "not a JSON object",
		`{"cniVersion":"1.0.0","plugins":{}}`: "plugins: it is not an array",
		list(`1`):                             "plugins[0]: it is not an object",
		list(``):                              "plugins: it has none",
		`{"cniVersion":"1.0.0"}`:              "plugins: it has none",
		`{"cniVersion":"0.2.0","plugins":[{"type":"ptp"}]}`:            `cniVersion "0.2.0": plugins cannot be chained: use one of 0.3.0`,
		`{"plugins":[{"type":"ptp"}]}`:                                 `cniVersion ""`,
		`{"cniVersion":7,"plugins":[{"type":"ptp"}]}`:                  "cniVersion: ",
		`{"cniVersion":"1.0.0","plugins":[{}],"plugins":[{}]}`:         "the key plugins twice",
		`{"cniVersion":"1.0.0","cniVersion":"1.1.0","plugins":[{}]}`:   "the key cniVersion twice",
		list(`{"type":"loopback"}`):                                    "loopback is the only one",
		list(added):                                                    "isthmus-cni is the only one",
		list(`{"type":"isthmus-cni"},{"type":"portmap"}`):              "with another mode than policy",
		list(strings.Repeat(`{},`, 100) + `{}`):                        "more than 100",
		`{"x":"` + strings.Repeat("a", conflist.MaxSize) + `"}`:        "at most 1048576",
		`{"cniVersion":"1.0.0","plugins":[{"type":"ptp"}]} {"more":1}`: "not valid JSON",
	} {
		if got, err := conflist.Add([]byte(text), entry); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %s, %v, want %q", text, got, err, want)
		}
		if strings.Contains(text, added) {
			continue
		}
		if same, was := conflist.Remove([]byte(text), entry.Type); was || string(same) != text {
			t.Errorf("removed from %.80s: %s", text, same)
		}
	}
	for text, want := range map[string]string{
		`{`: "not a JSON object", `{"cniVersion":"1.0.0","name":"n"}`: "no type or no name", `{"cniVersion":"1.0.0","type":"ptp"}`: "no type or no name",
		`{"cniVersion":"1.0.0","name":"n","plugins":[]}`:               "holds a list",
		`{"cniVersion":"1.0.0","name":"n","type":"loopback"}`:          "configures no network",
		`{"cniVersion":"1.0.0","name":"n","type":"isthmus-cni"}`:       "isthmus-cni is its only plugin",
		`{"cniVersion":"0.1.0","name":"n","type":"ptp"}`:               `cniVersion "0.1.0"`,
		`{"name":"` + strings.Repeat("a", conflist.MaxSize) + `"}`:     "at most 1048576",
		`{"cniVersion":"1.0.0","name":"n","type":"ptp"}{"type":"ptp"}`: "not a JSON object",
	} {
		if got, err := conflist.Wrap([]byte(text), entry, "f"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %s, %v, want %q", text, got, err, want)
		}
	}
	// A list without plugins may have them in a directory.
	for text, want := range map[string]bool{list(`{"type":"loopback"}`): true, list(``): false, `{"cniVersion":"1.1.0","name":"n"}`: false} {
		if _, err := conflist.Add([]byte(text), entry); err == nil || errors.Is(err, conflist.ErrNoNetwork) != want {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// TestEntryFits checks that a result is within the bounds of the texts that this package reads. Otherwise uninstall
// would leave the entry, or the list that wraps a file, without the plugin.
func TestEntryFits(t *testing.T) {
	list := func(size, plugins int) []byte {
		text := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}` + strings.Repeat(`,{"type":"a"}`, plugins-1) + `],"x":""}`
		return []byte(strings.Replace(text, `""`, `"`+strings.Repeat("x", max(0, size-len(text)))+`"`, 1))
	}
	room := conflist.MaxSize - len(","+added)
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"size, fits": {list(room, 1), ""}, "size": {list(room+1, 1), "at most 1048576"},
		"plugins, fit": {list(0, 99), ""}, "plugins": {list(0, 100), "more than 100"},
	} {
		got, err := conflist.Add(c.text, entry)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
			continue
		}
		if back, was := conflist.Remove(got, entry.Type); err != nil || !was || !bytes.Equal(back, c.text) {
			t.Errorf("%s: %v, removed %v", name, err, was)
		}
	}
	for numbers, want := range map[int]string{50_000: "", 500_000: "at most 2097152"} {
		text := `{"cniVersion":"1.0.0","name":"n","type":"ptp","x":[1` + strings.Repeat(",1", numbers) + `]}`
		got, err := conflist.Wrap([]byte(text), entry, "10-n.conf")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("wrapped %d numbers: %v, want %q", numbers, err, want)
		}
		if err == nil && conflist.Wrapped(got) != "10-n.conf" {
			t.Errorf("wrapped %d numbers in %d bytes that are not recognised", numbers, len(got))
		}
	}
}

// FuzzAdd checks that Add changes nothing but adds one entry after another plugin, and that Remove
// restores the text.
func FuzzAdd(f *testing.F) {
	for _, s := range []string{flannel, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},` + added + `,{"type":"b"}]}`, `{"plugins":[{"type":"a"} , {"type":"b","a":[{}]}],"name":"n","cniVersion":"0.3.1"}`,
		`{"cniVersion":"1.0.0","name":"n","plugins":[` + added + `,` + added + `,{"Type":"a"}]}`, `{"cniVersion":"1.0.0","name":"n","plugins":[null,{"type":"\ud800"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		original := bytes.Clone(text)
		got, err := conflist.Add(text, entry)
		if !bytes.Equal(text, original) {
			t.Fatal("Add changed its argument")
		}
		clean, was := conflist.Remove(text, entry.Type)
		if err != nil {
			return
		}
		back, _ := conflist.Remove(got, entry.Type)
		if !bytes.Equal(back, clean) {
			t.Errorf("restored\n%s\nwant\n%s", back, clean)
		}
		if !was && !bytes.Equal(back, original) {
			t.Errorf("restored\n%s\nwant the original\n%s", back, original)
		}
		if again, err := conflist.Add(got, entry); err != nil || !bytes.Equal(again, got) {
			t.Errorf("added again: %v\n%s", err, again)
		}
		var before, after map[string]any
		var ours any
		if err := errors.Join(json.Unmarshal(clean, &before), json.Unmarshal(got, &after), json.Unmarshal([]byte(added), &ours)); err != nil {
			t.Fatal(err)
		}
		var others []any
		list, _ := after["plugins"].([]any)
		for i, p := range list {
			if i == 0 || !reflect.DeepEqual(p, ours) {
				others = append(others, p)
			}
		}
		if len(others) != len(list)-1 || !reflect.DeepEqual(others, before["plugins"]) {
			t.Errorf("plugins are %v, and were %v", list, before["plugins"])
		}
		delete(before, "plugins")
		delete(after, "plugins")
		if !reflect.DeepEqual(before, after) {
			t.Errorf("other keys are %v, and were %v", after, before)
		}
	})
}
