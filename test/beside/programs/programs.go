// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is a program of another project: the directory of the module that requires it, its package, and the name of
// the file that its project installs.
type program struct{ module, pkg, name string }

var programs = []program{
	{"binaries", "github.com/containernetworking/plugins/plugins/ipam/host-local", "host-local"},
	{"binaries", "github.com/containernetworking/plugins/plugins/main/bridge", "bridge"},
	{"binaries", "github.com/containernetworking/plugins/plugins/main/ptp", "ptp"},
	{"binaries", "github.com/containernetworking/plugins/plugins/meta/portmap", "portmap"},
	{"flannelplugin", "github.com/containernetworking/plugins/plugins/meta/flannel", "flannel"},
	{"flanneld", flannelModule + "/cmd/install_conf", "install-conf"},
	{"aws", "github.com/aws/amazon-vpc-cni-k8s/cmd/routed-eni-cni-plugin", "aws-cni"},
	{"aws", "github.com/aws/amazon-vpc-cni-k8s/cmd/egress-cni-plugin", "egress-cni"},
	{"aws", "./ipamd", "ipamd"}, // of the test
	{"azure", "github.com/Azure/azure-container-networking/cni/network/plugin", "azure-vnet"},
	{"azure", "github.com/Azure/azure-container-networking/cni/network/plugin", "azure-vnet.exe"},
}

// FlannelPlugins are the plugins that a list of flannel runs.
var FlannelPlugins = []string{"flannel", "bridge", "host-local", "portmap"}

const flannelModule = "github.com/flannel-io/flannel"

// Build compiles programs into a directory, unless they are there. beside is the path of test/beside.
func Build(ctx context.Context, beside, bin string, names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(bin, name)); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := build(ctx, beside, filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
	}
	return nil
}

func build(ctx context.Context, beside, to string) error {
	name := filepath.Base(to)
	if name == "flanneld" {
		return buildFlanneld(ctx, beside, to)
	}
	for _, p := range programs {
		if p.name != name {
			continue
		}
		system := "linux"
		if filepath.Ext(name) == ".exe" {
			system = "windows"
		}
		_, err := run(ctx, filepath.Join(beside, p.module), "env", "GOOS="+system, "go", "build", "-o", to, p.pkg)
		return err
	}
	return errors.New("no module has it")
}

// backends are imports of flannel's main.go that are left out: their libraries are not on the module proxy, or need a C
// compiler.
var backends = []string{"tencentvpc", "udp", "extension", "ipsec", "wireguard"}

// FlannelSource returns the directory of flannel's sources.
func FlannelSource(ctx context.Context, beside string) (string, error) {
	dir := filepath.Join(beside, "flanneld")
	if _, err := run(ctx, dir, "go", "mod", "download", flannelModule); err != nil { // go list does not
		return "", err
	}
	out, err := run(ctx, dir, "go", "list", "-m", "-f", "{{.Dir}}", flannelModule)
	return strings.TrimSpace(string(out)), err
}

// buildFlanneld compiles the main.go of flannel without some backends.
func buildFlanneld(ctx context.Context, beside, to string) (err error) {
	source, err := FlannelSource(ctx, beside)
	if err != nil {
		return err
	}
	main, err := os.ReadFile(filepath.Join(source, "main.go"))
	if err != nil {
		return err
	}
	for _, b := range backends {
		line := fmt.Appendf(nil, "\t_ \"github.com/flannel-io/flannel/pkg/backend/%s\"\n", b)
		if !bytes.Contains(main, line) {
			return fmt.Errorf("flannel does not import backend %s any more: correct the list of backends", b)
		}
		main = bytes.Replace(main, line, nil, 1)
	}
	dir, err := os.MkdirTemp("", "flanneld")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files := map[string][]byte{"main.go": main}
	for _, name := range []string{"go.mod", "go.sum"} {
		if files[name], err = os.ReadFile(filepath.Join(beside, "flanneld", name)); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	_, err = run(ctx, dir, "go", "build", "-o", to, ".")
	return err
}

// run executes a command in a directory and returns what it prints.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w: %s", strings.Join(cmd.Args, " "), dir, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
