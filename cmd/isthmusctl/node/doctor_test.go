// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/doctor"
	"github.com/isthmus-net/isthmus/common/inspect"
)

// TestDoctorMode checks the modes that agents have on each system.
func TestDoctorMode(t *testing.T) {
	for _, c := range []struct {
		mode, goos string
		want       bool
	}{{"", "linux", true}, {"full", "windows", true}, {"policy", "linux", true}, {"policy", "windows", true}, {"observe", "linux", true}, {"observe", "windows", false}, {"chained", "linux", false}} {
		if err := checkMode(c.mode, c.goos); (err == nil) != c.want {
			t.Errorf("--mode %s on %s: %v", c.mode, c.goos, err)
		}
	}
}

// TestSettingsOfTheAgent checks that doctor examines what the running agent uses, such as the paths of its pod.
func TestSettingsOfTheAgent(t *testing.T) {
	dir := t.TempDir()
	here := filepath.Join(dir, "here")
	if err := os.Mkdir(here, 0o755); err != nil {
		t.Fatal(err)
	}
	base := doctor.Config{Root: "/", CNIBinDir: "/b", CNIConfDir: "/c", VXLANPort: 4789, MetricsPort: 9470}
	full := base
	full.Mode = "full"
	all := []string{"--cni-bin-dir=" + here, "--cni-conf-dir=" + here, "--mode=policy", "--uplink=eth1", "--vxlan-port=8472", "--http-address=[::1]:9999", "--log-level=debug"}
	for _, c := range []struct {
		name     string
		settings []string
		given    []string
		want     doctor.Config
	}{
		{"none", nil, nil, full},
		{"all", all, nil, doctor.Config{Root: "/", CNIBinDir: here, CNIConfDir: here, Mode: "policy", Uplink: "eth1", VXLANPort: 8472, MetricsPort: 9999}},
		{"the command line counts", all, []string{"cni-bin-dir", "cni-conf-dir", "mode", "uplink", "vxlan-port", "metrics-port"}, base},
		{"paths of a pod, on the host", []string{"--cni-bin-dir=" + dir + "/other", "--cni-conf-dir=" + dir + "/other", "--http-address="}, nil, full},
	} {
		cfg := base
		useSettings(&cfg, c.settings, func(name string) bool { return slices.Contains(c.given, name) })
		if !reflect.DeepEqual(cfg, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, cfg, c.want)
		}
	}
}

// TestDoctorAsksTheAgent checks doctor and bundle beside an agent in a pod, where the directories of the host have other names.
func TestDoctorAsksTheAgent(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "00-other.conflist"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(n *node) { n.settings = []string{"--cni-conf-dir=" + dir, "--cni-bin-dir=" + dir} })
	want := "00-other.conflist in " + dir
	expect(t, 1, []string{want, dir + "/loopback is missing"}, "doctor", "--socket", n.socket)
	file := filepath.Join(dir, "node.tgz")
	expect(t, 0, nil, "bundle", "-o", file, "--socket", n.socket)
	packed, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	if b, err := inspect.Read(packed); err != nil || !strings.Contains(string(b.Files["doctor.json"]), want) {
		t.Errorf("doctor.json of a bundle: %v\n%s", err, b.Files["doctor.json"])
	}
}
