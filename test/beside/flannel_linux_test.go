// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/kubernetes"
	"github.com/isthmus-net/isthmus/test/netns"
)

// flannelConf is the list that flannel installs, with the paths of a node of the test.
func flannelConf(n *cluster.Node) string {
	return fmt.Sprintf(`{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "subnetFile": %q,
      "dataDir": %q,
      "ipam": {"dataDir": %q},
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
`, subnetFile(n), filepath.Join(n.Dir, "flannel"), filepath.Join(n.Dir, "ipam"))
}

func subnetFile(n *cluster.Node) string { return filepath.Join(n.Dir, "subnet.env") }

// flannel returns a function that starts flannel with a backend. The test configures it with IPv4 only.
func flannel(backend string) func(*testing.T, *cluster.Cluster, string) {
	return func(t *testing.T, c *cluster.Cluster, bin string) { startFlannel(t, c, bin, backend) }
}

// startFlannel starts etcd outside the cluster, and flanneld on each Linux node, and waits until each has its subnet.
// Windows nodes have the lease that flanneld.exe would make for a VXLAN.
func startFlannel(t *testing.T, c *cluster.Cluster, bin, backend string) {
	t.Helper()
	build(t, bin, "flanneld")
	programs, err := kubernetes.Build(t.Context(), os.Stderr, "etcd")
	if err != nil {
		t.Fatal(err)
	}
	outside, addresses := c.Outside()
	client := "http://" + netip.AddrPortFrom(addresses[0], 2379).String()
	start(t, outside, exec.Command(filepath.Join(programs, "etcd"), "--data-dir", t.TempDir(), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error"))
	put(t, outside, client, "/coreos.com/network/config", fmt.Sprintf(`{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": %s}`, backend))
	var settings struct{ Type string }
	if err := json.Unmarshal([]byte(backend), &settings); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		// flanneld takes the lease of its address, so that the node's pods have the range of its Node object.
		range4 := strings.ReplaceAll(n.PodCIDRs[0].String(), "/", "-")
		data := "null"
		if n.OS == model.Windows {
			data = fmt.Sprintf(`{"VNI": %d, "VtepMAC": "%s"}`, overlayVNI, n.Hardware())
		}
		put(t, outside, client, "/coreos.com/network/subnets/"+range4,
			fmt.Sprintf(`{"PublicIP": "%s", "PublicIPv6": null, "BackendType": %q, "BackendData": %s}`, n.Addresses()[0], settings.Type, data))
		if n.OS == model.Windows {
			continue
		}
		start(t, n.NS, exec.Command(filepath.Join(bin, "flanneld"), "--etcd-endpoints", client, "--iface", "eth0", "--subnet-file", subnetFile(n), "--iptables-forward-rules=false",
			"--ip-masq")) // as flannel's manifest has it; else its plugin masquerades traffic between nodes, too
	}
	for _, n := range c.Nodes {
		if n.OS == model.Windows {
			continue // its plugin has the range in its configuration
		}
		want := "FLANNEL_SUBNET=" + strings.Replace(n.PodCIDRs[0].String(), ".0/", ".1/", 1)
		wait(t, "subnet "+want+" of flannel on "+n.Name, func() bool {
			text, err := os.ReadFile(subnetFile(n))
			return err == nil && bytes.Contains(text, []byte(want))
		})
	}
}

// start runs a program in a namespace until the test ends. Its output appears if the test fails.
func start(t *testing.T, ns *netns.NS, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: 0}
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", filepath.Base(cmd.Path), text[max(0, len(text)-4000):])
		}
		log.Close()
	})
}

// put sets a key of etcd, by its JSON gateway.
func put(t *testing.T, ns *netns.NS, address, key, value string) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"key": base64.StdEncoding.EncodeToString([]byte(key)), "value": base64.StdEncoding.EncodeToString([]byte(value))})
	if err != nil {
		t.Fatal(err)
	}
	client := ns.HTTPClient(5 * time.Second)
	wait(t, "answer of etcd", func() bool {
		r, err := client.Post(address+"/v3/kv/put", "application/json", bytes.NewReader(body))
		if err != nil {
			return false
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode == http.StatusOK
	})
}

func wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
	}
}
