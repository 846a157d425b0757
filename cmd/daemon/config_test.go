// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// options are flags of each type that the commands have.
type options struct {
	level   string
	size    uint16
	wait    time.Duration
	on      bool
	ranges  []string
	ports   []string
	entries map[string]int
}

func configured(t *testing.T, text string, args ...string) (o options, status int, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Command("isthmus-test", "A test", "v1", func(*cobra.Command) error { return nil })
	f := c.Flags()
	f.StringVar(&o.level, "log-level", "info", "")
	f.Uint16Var(&o.size, "port", 1, "")
	f.DurationVar(&o.wait, "quarantine", 0, "")
	f.BoolVar(&o.on, "masquerade", true, "")
	f.StringArrayVar(&o.ranges, "pod-cidr", nil, "")
	f.StringSliceVar(&o.ports, "reserved", []string{"6443"}, "")
	f.StringToIntVar(&o.entries, "map-entries", nil, "")
	var errs bytes.Buffer
	status = Run(context.Background(), c, append(args, "--config", path), &bytes.Buffer{}, &errs)
	return o, status, errs.String()
}

func TestConfig(t *testing.T) {
	o, status, errs := configured(t, `# settings
log-level: debug
port: 4.789e+03
quarantine: 1m30s
masquerade: false
pod-cidr: [10.0.0.0/24, "fd00::/64"]
reserved:
- 80
- 443-445
map-entries: {conns4: 100, conns6: 200}
`)
	want := "{debug 4789 90000000000 false [10.0.0.0/24 fd00::/64] [80 443-445] map[conns4:100 conns6:200]}"
	if got := fmt.Sprint(o); status != 0 || got != want {
		t.Errorf("status %d %s: %s, want %s", status, errs, got, want)
	}
	if o, status, _ := configured(t, "# nothing\n", "--port", "7"); status != 0 || o.port() != 7 {
		t.Errorf("status %d, %+v", status, o)
	}
	for _, text := range []string{"---\nport: 7\n", "port: 7\n---\n", "---\n# no settings\n---\nport: 7\n"} {
		if o, status, errs := configured(t, text); status != 0 || o.port() != 7 {
			t.Errorf("%q: status %d %s, %+v", text, status, errs, o)
		}
	}
	if o, status, errs := configured(t, "reserved: []\n"); status != 0 || len(o.ports) != 0 {
		t.Errorf("an empty list: status %d %s, %+v", status, errs, o)
	}
}

func (o options) port() uint16 { return o.size }

// All errors in the file are reported at once, each with its line.
func TestBadConfig(t *testing.T) {
	for text, want := range map[string]string{
		"log-level: debug\nlog-levle: info\n":    "line 2: log-levle: no such setting",
		"port: 70000\n":                          `line 1: port: "70000": `,
		"port: [1, 2]\n":                         "takes no list",
		"port:\n":                                "has no value",
		"quarantine: soon\n":                     `"soon": give a duration with its unit`,
		"log-level: a\nlog-level: b\n":           "is there twice",
		"masquerade: true\n":                     "--masquerade is on the command line too",
		"config: other.yaml\n":                   "no such setting",
		"help: true\n":                           "no such setting",
		"version: true\n":                        "no such setting",
		"log-level: debug\n---\nport: 7\n":       "line 3: a second document begins: write all settings into one",
		"log-level: debug\n---\nport: [\n":       "write valid YAML",
		"- log-level\n":                          "want lines such as log-level: debug",
		"log-level: [\n":                         "write valid YAML",
		"pod-cidr: [[10.0.0.0/8]]\n":             "want a list of plain values",
		"map-entries: {a: {b: 1}}\n":             "want NAME: VALUE",
		strings.Repeat("# comment\n", 110_000):   "more than 1048576 bytes",
		"port: x\nquarantine: y\nlog-level: z\n": "line 2: quarantine",
	} {
		_, status, errs := configured(t, text, "--masquerade=false")
		if status != 2 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%.60q: status %d, %q, want %q", text, status, errs, want)
		}
	}
	c := Command("isthmus-test", "A test", "v1", func(*cobra.Command) error { return nil })
	var errs bytes.Buffer
	if status := Run(context.Background(), c, []string{"--config", "/nonexistent"}, &errs, &errs); status != 2 || !strings.Contains(errs.String(), "no such file") {
		t.Errorf("status %d, %s", status, &errs)
	}
}

// FuzzConfig reads any file: it never panics, and reads no file twice.
func FuzzConfig(f *testing.F) {
	f.Add("log-level: debug\npod-cidr: [a]\n")
	f.Add("map-entries: &x {a: 1}\nreserved: *x\n")
	f.Fuzz(func(t *testing.T, text string) {
		if _, status, errs := configured(t, text); status != 0 && (status != 2 || errs == "") {
			t.Errorf("status %d, %q", status, errs)
		}
	})
}
