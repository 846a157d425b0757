// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cni/install/conflist"
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
