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
	switch name {
	case "flanneld":
		return buildFlanneld(ctx, beside, to)
	case "kube-network-policies":
		return buildQueue(ctx, beside, to)
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
	return source(ctx, filepath.Join(beside, "flanneld"), flannelModule)
}

// source returns the directory of a module that the one in dir requires.
func source(ctx context.Context, dir, module string) (string, error) {
	if _, err := run(ctx, dir, "go", "mod", "download", module); err != nil { // go list does not
		return "", err
	}
	out, err := run(ctx, dir, "go", "list", "-m", "-f", "{{.Dir}}", module)
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

// queueModule is kube-network-policies.
const queueModule = "sigs.k8s.io/kube-network-policies"

// queueEdits make its rules queue by the target of iptables (revision 3: queue 100, one queue, bypass): many kernels
// lack the queue statement of nftables.
var queueEdits = [][2]string{
	{`"github.com/google/nftables/expr"`, `"github.com/google/nftables/expr"` + "\n\t" + `"github.com/google/nftables/xt"`},
	{"&expr.Queue{Num: uint16(c.config.QueueID)}", `&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &xt.Unknown{100, 0, 1, 0, 1, 0, 0, 0}}`},
	{"queue.Flag = expr.QueueFlagBypass", ""},
}

// buildQueue compiles kube-network-policies with these edits.
func buildQueue(ctx context.Context, beside, to string) (err error) {
	of := filepath.Join(beside, "knp")
	from, err := source(ctx, of, queueModule)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "knp")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	edited := filepath.Join(dir, "source")
	if err := os.CopyFS(edited, os.DirFS(from)); err != nil {
		return err
	}
	file := filepath.Join(edited, "pkg", "dataplane", "controller.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, e := range queueEdits {
		if !bytes.Contains(text, []byte(e[0])) {
			return fmt.Errorf("kube-network-policies has no %q any more: correct the edits", e[0])
		}
		text = bytes.ReplaceAll(text, []byte(e[0]), []byte(e[1]))
	}
	mod, err := os.ReadFile(filepath.Join(of, "go.mod"))
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(of, "go.sum"))
	if err != nil {
		return err
	}
	mod = fmt.Appendf(mod, "\nreplace %s => %s\n", queueModule, edited)
	if err := errors.Join(os.WriteFile(file, text, 0o644), os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o644),
		os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644)); err != nil {
		return err
	}
	_, err = run(ctx, of, "go", "build", "-modfile="+filepath.Join(dir, "go.mod"), "-o", to, queueModule+"/cmd/kube-network-policies/standard")
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
