// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
)

// planted returns a secret that no other place has.
func planted(where string) string { return "planted-secret-in-" + where }

// places are where a test plants secrets, each its own.
var places = []string{"secret", "secret-data", "configmap", "pod-env", "pod-command", "pod-annotation", "node-annotation", "namespace-annotation",
	"policy-annotation", "serviceaccount", "environment", "proxy", "cni", "kube-proxy", "kube-proxy-file", "state-dir", "broken"}

// withSecrets are objects as users have them. The label shows that the test can find something.
var withSecrets = `
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: planted, annotations: {note: ` + planted("secret") + `}}
stringData: {password: ` + planted("secret") + `}
data: {password: ` + base64.StdEncoding.EncodeToString([]byte(planted("secret-data"))) + `}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: planted}
data: {password: ` + planted("configmap") + `}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: a, namespace: planted, annotations: {token: ` + planted("serviceaccount") + `}}
---
apiVersion: v1
kind: Namespace
metadata: {name: planted, annotations: {token: ` + planted("namespace-annotation") + `}}
---
apiVersion: v1
kind: Node
metadata: {name: planted, annotations: {token: ` + planted("node-annotation") + `}}
---
apiVersion: v1
kind: Pod
metadata: {name: planted, namespace: planted, labels: {app: planted, shown: label-in-the-bundle}, annotations: {token: ` + planted("pod-annotation") + `}}
spec:
  nodeName: planted
  containers:
  - {name: main, command: [run, --token, ` + planted("pod-command") + `], env: [{name: PASSWORD, value: ` + planted("pod-env") + `}], ports: [{name: echo, containerPort: 7000}]}
status: {podIPs: [{ip: 10.244.9.9}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: planted, namespace: planted, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"token":"` + planted("policy-annotation") + `"}'}}
spec:
  podSelector: {matchLabels: {app: planted}}
  ingress: [{ports: [{port: 7000}]}]
`

// TestBundleHoldsNoSecrets plants secrets in all that an agent, isthmusctl and doctor can read, and looks for them in
// the archives of a Linux and a Windows node.
func TestBundleHoldsNoSecrets(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	t.Setenv("ISTHMUS_TOKEN", planted("environment")) // agents and isthmusctl inherit it
	t.Setenv("HTTPS_PROXY", "http://user:"+planted("proxy")+"@192.0.2.1:3128")
	files := hubbletest.NewAuthority(t).Write(t.TempDir(), hubble.ServerName, x509.ExtKeyUsageServerAuth)
	key, err := os.ReadFile(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	c := commands.Start(t, manifests, cluster.Config{Linux: 1, Windows: 1,
		AgentFlags: []string{"--hubble-listen", "127.0.0.1:4244", "--hubble-cert", files.Cert, "--hubble-key", files.Key, "--hubble-ca", files.CA}})
	e := &exercise{t: t, cluster: c, pods: clustertest.Attach(t, c)}
	if err := c.Manifests.Put("planted", withSecrets); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		if err := os.WriteFile(filepath.Join(n.Dir, "state", "token"), []byte(planted("state-dir")), 0o600); err != nil {
			t.Fatal(err)
		}
		var b map[string]string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
			if b = e.bundle(n); holds(b, "label-in-the-bundle") != "" { // the agent has read the objects
				break
			}
		}
		if found := b["doctor.json"]; !strings.Contains(found, "\"kind\": \"DoctorReport\"") || !strings.Contains(found, "05-other.conflist") || !strings.Contains(found, "kube-proxy") {
			t.Errorf("%s: doctor did not see the planted files:\n%s", n.Name, found)
		}
		search := map[string]string{}
		for _, where := range places {
			search[where] = planted(where)
		}
		for i, line := range strings.Split(strings.TrimSpace(string(key)), "\n") {
			if len(line) > 16 && !strings.Contains(line, "PRIVATE KEY") {
				search[fmt.Sprintf("line %d of the key", i)] = line
			}
		}
		if holds(b, "label-in-the-bundle") == "" || holds(b, files.Key) == "" && strings.HasPrefix(n.Name, "linux") {
			t.Errorf("%s: the archive lacks what it should hold, so this test finds nothing", n.Name)
		}
		for where, secret := range search {
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret))} {
				if file := holds(b, form); file != "" {
					t.Errorf("%s: %s of the archive has the secret of %s", n.Name, file, where)
				}
			}
		}
	}
}

// bundle makes an archive of a node, whose configurations of CNI and kube-proxy have secrets, and reads it.
func (e *exercise) bundle(n *cluster.Node) map[string]string {
	e.t.Helper()
	dir := e.t.TempDir()
	conf := filepath.Join(dir, "net.d")
	if err := os.Mkdir(conf, 0o755); err != nil {
		e.t.Fatal(err)
	}
	for name, text := range map[string]string{
		filepath.Join(conf, "05-other.conflist"): `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"other","token":"` + planted("cni") + `"}]}`,
		filepath.Join(conf, "06-broken.conf"):    `{"name":"broken","token":"` + planted("broken") + `"`,
		filepath.Join(dir, "kube-proxy.yaml"):    "mode: {token: " + planted("kube-proxy-file") + "}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	proxy := &exec.Cmd{Path: "/bin/sh", Args: []string{"kube-proxy", "-c", "sleep 300; :", "--", "--config=" + filepath.Join(dir, "kube-proxy.yaml"), "--token=" + planted("kube-proxy")}}
	if err := n.NS.Do(proxy.Start); err != nil {
		e.t.Fatal(err)
	}
	defer func() {
		_ = proxy.Process.Kill()
		_ = proxy.Wait() // it was killed
	}()
	file := filepath.Join(dir, "node.tgz")
	ctl := n.Ctl(e.t.Context(), "bundle", "-o", file)
	script := `mount -t tmpfs tmpfs /etc && mkdir -p /etc/cni/net.d && mount --bind "$0" /etc/cni/net.d && exec "$@"`
	cmd := exec.CommandContext(e.t.Context(), "unshare", append([]string{"--mount", "--propagation=private", "sh", "-c", script, conf}, ctl.Args...)...)
	var out []byte
	if err := n.NS.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	}); err != nil {
		e.t.Fatalf("bundle: %v\n%s", err, out)
	}
	all, err := unpack(file)
	if err != nil {
		e.t.Fatal(err)
	}
	return all
}

// unpack returns the content of the files of an archive, by name.
func unpack(name string) (map[string]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for t := tar.NewReader(packed); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		all[filepath.Base(h.Name)] = string(content)
	}
}

// holds returns the name of a file that has a text, or nothing.
func holds(files map[string]string, text string) string {
	for name, content := range files {
		if strings.Contains(content, text) || strings.Contains(name, text) {
			return name
		}
	}
	return ""
}
