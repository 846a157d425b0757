// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/cni/install/conflist"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// A list that the agent of mode policy made of a configuration of one plugin is read with the name of that file,
// which must exist.
func TestReadWrappedConf(t *testing.T) {
	dir := t.TempDir()
	conf := []byte(`{"cniVersion":"0.4.0","name":"n","type":"bridge","bridge":"cni0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`)
	list, err := conflist.Wrap(conf, conflist.Entry{Type: "isthmus-cni", Socket: "/run/isthmus.sock"}, "10-bridge.conf")
	if err != nil {
		t.Fatal(err)
	}
	original, wrap := filepath.Join(dir, "10-bridge.conf"), filepath.Join(dir, "10-bridge-isthmus.conflist")
	if err := errors.Join(os.WriteFile(original, conf, 0o600), os.WriteFile(wrap, list, 0o600)); err != nil {
		t.Fatal(err)
	}
	o := &options{from: "bridge", confDir: dir}
	if network, err := readNetwork(o); err != nil || network.ConfDir != dir {
		t.Errorf("network %+v, %v", network, err)
	}
	if network, err := readConf(o); err != nil || network.Conf != wrap || network.Wrapped != original {
		t.Errorf("network %+v, %v", network, err)
	}
	if err := os.Remove(original); err != nil {
		t.Fatal(err)
	}
	if _, err := readConf(o); err == nil || !strings.Contains(err.Error(), `"10-bridge.conf"`) {
		t.Errorf("without the original: %v", err)
	}
}

// kubenet of AKS has a file, which names its ranges and is moved aside. That of another runtime has none: files are those of
// other networks, and the ranges come from the command line.
func TestReadKubenet(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "10-containerd-net.conflist")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := &options{from: "kubenet", confDir: dir}
	if _, err := readNetwork(o); err == nil || !strings.Contains(err.Error(), "--pod-cidr") {
		t.Errorf("without a file and ranges: %v", err)
	}
	const conf = `{"name":%q,"plugins":[{"type":"bridge","bridge":"cbr1","isGateway":true,"ipam":{"type":"host-local","dataDir":"/d","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]}}]}`
	write(fmt.Sprintf(conf, "kubenet"))
	want := "cbr1 /d/kubenet " + path + " [10.1.0.0/24 fd00::/64]"
	if n, err := readNetwork(o); err != nil || fmt.Sprint(n.Bridge, " ", n.Leases, " ", n.Conf, " ", n.Ranges) != want {
		t.Errorf("network %+v, %v, want %s", n, err, want)
	}
	o.podCIDRs = []string{"10.2.0.0/24"}
	if _, err := readNetwork(o); err == nil || !strings.Contains(err.Error(), "pods cannot keep their addresses") {
		t.Errorf("with other ranges: %v", err)
	}
	write(fmt.Sprintf(conf, "podman"))
	want = "cbr0 /var/lib/cni/networks/kubenet  [10.2.0.0/24]"
	if n, err := readNetwork(o); err != nil || fmt.Sprint(n.Bridge, " ", n.Leases, " ", n.Conf, " ", n.Ranges) != want {
		t.Errorf("network %+v, %v, want %s", n, err, want)
	}
	for _, text := range []string{"{", `{"name":"kubenet","type":"ptp"}`} { // perhaps that of kubenet, and of kubenet
		write(text)
		if n, err := readNetwork(o); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", text, n, err)
		}
	}
}

// A node with the configuration of another network is refused: the runtime would use it between the migration and the
// start of the agent, or for ever. So is a run that was interrupted, at every stage.
func TestAnotherNetwork(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("02-bridge.conflist", `{"cniVersion":"0.4.0","name":"n","type":"bridge","bridge":"none0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`)
	write("30-moved.conf.before-isthmus", "{}")
	o := &options{from: "bridge", confDir: dir, stateDir: state}
	network, err := readNetwork(o)
	if err != nil {
		t.Fatal(err)
	}
	write(install.ConfName, "{}") // that of mode full precedes what follows
	write("20-other.conf", `{"name":"other","type":"ptp"}`)
	if _, err := readNetwork(o); err != nil {
		t.Errorf("behind %s: %v", install.ConfName, err)
	}
	refused := func(err error, name string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)) || !strings.Contains(err.Error(), "move it out of the directory") {
			t.Errorf("beside %s: %v", name, err)
		}
	}
	write("04-other.json", "{")
	_, err = readNetwork(o)
	refused(err, "04-other.json")
	if err := errors.Join(os.Remove(filepath.Join(dir, "04-other.json")), os.Remove(filepath.Join(dir, install.ConfName))); err != nil {
		t.Fatal(err)
	}
	_, _, err = makePlan(o)
	refused(err, "20-other.conf")
	if err := takeover.Save(state)(takeover.Begin(&takeover.Plan{Network: network, Steps: []takeover.Step{{Kind: takeover.KeepConf, Path: network.Conf}}})); err != nil {
		t.Fatal(err)
	}
	for range 2 { // before and after the file of the network was moved
		var out bytes.Buffer
		o.bpffs = filepath.Join(state, "bpf")
		refused(env{cli.Env{Stdout: &out, Stderr: &out}}.forward(t.Context(), o), "20-other.conf")
		if err := os.Rename(network.Conf, network.Conf+takeover.AsideSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
