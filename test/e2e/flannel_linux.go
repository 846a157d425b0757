// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/beside/programs"
)

// flannelImages matches the images in the manifest of flannel.
var flannelImages = regexp.MustCompile(`(?m)^\s+image: (\S+)$`)

// besideFlannel reports whether flannel connects the pods, and Isthmus only enforces policy.
func (c config) besideFlannel() bool { return c.podNetwork == "flannel" }

// flannelManifest returns the manifest of flannel's release. The last reference plugins with its plugin know CNI
// versions below 1.0.0.
func flannelManifest(ctx context.Context, source string) (string, error) {
	dir, err := programs.FlannelSource(ctx, filepath.Join(source, "test", "beside"))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, "Documentation", "kube-flannel.yml"))
	if err != nil {
		return "", err
	}
	const version = `"cniVersion": "1.0.0"`
	if strings.Count(string(text), version) != 1 {
		return "", fmt.Errorf("the manifest of flannel has no %s: correct the version to replace", version)
	}
	return strings.Replace(string(text), version, `"cniVersion": "0.3.1"`, 1), nil
}

// buildFlannel builds flannel and Helm. One image has the names of all images in the manifest of flannel.
func (l *lab) buildFlannel(ctx context.Context, source, writer string) error {
	say("building flannel and Helm")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", l.helmProgram(), "helm.sh/helm/v4/cmd/helm")
	cmd.Dir, cmd.Env = filepath.Join(source, "test", "helm"), append(os.Environ(), "CGO_ENABLED=0")
	if _, err := output(cmd); err != nil {
		return err
	}
	if err := programs.Build(ctx, filepath.Join(source, "test", "beside"), l.pluginDir(), programs.FlannelPlugins...); err != nil {
		return err
	}
	root := filepath.Join(l.dir, "flannel")
	if err := programs.Build(ctx, filepath.Join(source, "test", "beside"), filepath.Join(root, "opt", "bin"), "flanneld", "install-conf"); err != nil {
		return err
	}
	err := errors.Join(copyTools(root, "iptables", "iptables-restore", "iptables-save", "busybox"), os.Symlink("busybox", filepath.Join(root, "usr", "bin", "cp")),
		copyFile(filepath.Join(l.pluginDir(), "flannel"), filepath.Join(root, "flannel")))
	if err != nil {
		return err
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return err
	}
	for _, from := range extensions {
		if err := copyFile(from, filepath.Join(root, from)); err != nil {
			return err
		}
	}
	if l.flannel, err = flannelManifest(ctx, source); err != nil {
		return fmt.Errorf("read manifest of flannel: %w", err)
	}
	var names []string
	for _, match := range flannelImages.FindAllStringSubmatch(l.flannel, -1) {
		names = append(names, match[1])
	}
	_, err = output(exec.CommandContext(ctx, writer, "-root", root, "-name", strings.Join(names, ","), "-entrypoint",
		"/opt/bin/flanneld", "-o", filepath.Join(l.images, "flannel.tar")))
	return err
}

func (l *lab) pluginDir() string { return filepath.Join(l.dir, "plugins") }

// conflist is the file that flannel installs on a node.
func (n *node) conflist() string {
	return filepath.Join(n.dir, "root/etc/cni/net.d/10-flannel.conflist")
}

// startFlannel gives the nodes the plugins that they have before flannel comes, installs flannel by its manifest, and waits until
// all nodes are ready.
func (l *lab) startFlannel(ctx context.Context) error {
	for _, n := range l.nodes {
		for _, name := range programs.FlannelPlugins {
			if name == "flannel" { // its image installs it
				continue
			}
			if err := copyFile(filepath.Join(l.pluginDir(), name), filepath.Join(n.dir, "root/opt/cni/bin", name)); err != nil {
				return err
			}
		}
	}
	if err := l.apply(l.flannel); err != nil {
		return err
	}
	err := until(ctx, 3*time.Minute, "flannel", func() error {
		return l.expect(fmt.Sprint(len(l.nodes)), "-n", "kube-flannel", "get", "daemonset", "kube-flannel-ds", "-o", "jsonpath={.status.numberReady}")
	})
	if err != nil {
		return err
	}
	if err := l.nodesHaveNetwork(ctx); err != nil {
		return err
	}
	l.conflists = make(map[string]string)
	for _, n := range l.nodes {
		text, err := os.ReadFile(n.conflist())
		if err != nil {
			return err
		}
		l.conflists[n.name] = string(text)
	}
	return nil
}
