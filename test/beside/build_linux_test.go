// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// plugin is a plugin of another project: the directory of the module that requires it, its package, and the name
// of the file that its project installs.
type plugin struct{ module, pkg, name string }

var plugins = []plugin{
	{"binaries", "github.com/containernetworking/plugins/plugins/ipam/host-local", "host-local"},
	{"binaries", "github.com/containernetworking/plugins/plugins/main/bridge", "bridge"},
	{"binaries", "github.com/containernetworking/plugins/plugins/main/ptp", "ptp"},
	{"binaries", "github.com/containernetworking/plugins/plugins/meta/portmap", "portmap"},
	{"flannelplugin", "github.com/containernetworking/plugins/plugins/meta/flannel", "flannel"},
	{"aws", "github.com/aws/amazon-vpc-cni-k8s/cmd/routed-eni-cni-plugin", "aws-cni"},
	{"aws", "github.com/aws/amazon-vpc-cni-k8s/cmd/egress-cni-plugin", "egress-cni"},
	{"azure", "github.com/Azure/azure-container-networking/cni/network/plugin", "azure-vnet"},
	{"azure", "github.com/Azure/azure-container-networking/cni/network/plugin", "azure-vnet.exe"},
}

// build compiles some plugins into a directory, unless they are there.
func build(t *testing.T, bin string, wanted ...string) {
	t.Helper()
	for _, p := range plugins {
		if slices.Contains(wanted, p.name) && !exists(filepath.Join(bin, p.name)) {
			goos := "linux"
			if filepath.Ext(p.name) == ".exe" {
				goos = "windows"
			}
			run(t, p.module, "env", "GOOS="+goos, "go", "build", "-o", filepath.Join(bin, p.name), p.pkg)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// backends are imports of flannel's main.go that the test leaves out: their libraries are not on the module
// proxy, or need a C compiler.
var backends = []string{"tencentvpc", "udp", "extension", "ipsec", "wireguard"}

// buildFlanneld compiles the main.go of flannel without some backends.
func buildFlanneld(t *testing.T, bin string) {
	t.Helper()
	if exists(filepath.Join(bin, "flanneld")) {
		return
	}
	run(t, "flanneld", "go", "mod", "download", "github.com/flannel-io/flannel") // go list does not
	source := bytes.TrimSpace(run(t, "flanneld", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/flannel-io/flannel"))
	main, err := os.ReadFile(filepath.Join(string(source), "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backends {
		line := fmt.Appendf(nil, "\t_ \"github.com/flannel-io/flannel/pkg/backend/%s\"\n", b)
		if !bytes.Contains(main, line) {
			t.Fatalf("flannel does not import backend %s any more: correct the list of backends", b)
		}
		main = bytes.Replace(main, line, nil, 1)
	}
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("flanneld", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), text)
	}
	write(t, filepath.Join(dir, "main.go"), main)
	run(t, dir, "go", "build", "-o", filepath.Join(bin, "flanneld"), ".")
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// run executes a command and returns what it prints.
func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v in %s: %v\n%s", name, args, dir, err, stderr.Bytes())
	}
	return out
}
