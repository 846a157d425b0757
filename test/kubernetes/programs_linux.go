// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Version is the version of Kubernetes in binaries/go.mod.
const Version = "v1.36.3"

// module is the module of this repository, from which the programs' go.mod is located.
const module = "github.com/isthmus-net/isthmus"

// suite is the test binary of Kubernetes' end-to-end tests.
const suite = "e2e.test"

// OutOfWindow is a server that sends segments out of the TCP window, for a case of Kubernetes' end-to-end tests.
const OutOfWindow = "regression-issue-74839"

// forWindows is the suffix of programs for Windows.
const forWindows = ".exe"

// programs maps programs to their packages.
func programs() map[string]string {
	all := map[string]string{
		"agnhost":   "k8s.io/kubernetes/test/images/agnhost",
		"coredns":   "github.com/isthmus-net/isthmus/test/kubernetes/coredns",
		"etcd":      "go.etcd.io/etcd/server/v3",
		suite:       "k8s.io/kubernetes/test/e2e",
		OutOfWindow: "k8s.io/kubernetes/test/images/regression-issue-74839",
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"} {
		all[name] = "k8s.io/kubernetes/cmd/" + name
	}
	all["kube-proxy"+forWindows] = all["kube-proxy"]
	return all
}

// Names lists the programs.
func Names() []string { return slices.Sorted(maps.Keys(programs())) }

// Build builds missing programs, reports progress to out, and returns their directory. The first
// call takes minutes. Several processes may call it concurrently.
func Build(ctx context.Context, out io.Writer, names ...string) (dir string, err error) {
	source, err := sourceDir(ctx)
	if err != nil {
		return "", err
	}
	if dir, err = cacheDir(source); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create cache for the programs of Kubernetes: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("lock cache for the programs of Kubernetes: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	for _, name := range names {
		at, ok := programs()[name]
		if !ok {
			return "", fmt.Errorf("no program %q: choose of %s", name, strings.Join(Names(), ", "))
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			continue
		}
		if err := build(ctx, out, source, at, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// sourceDir returns the directory of the programs' go.mod.
func sourceDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	top, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the sources of Isthmus: %w: %s", err, stderr.String())
	}
	return filepath.Join(strings.TrimSpace(string(top)), "test", "kubernetes", "binaries"), nil
}

// Source returns the directory of a module from which the programs are built. It fetches the module if the cache of modules lacks it, as
// when another one built the programs.
func Source(ctx context.Context, module string) (string, error) {
	binaries, err := sourceDir(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = binaries
	text, err := cmd.Output()
	var found struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(text, &found); jsonErr != nil || found.Dir == "" {
		return "", fmt.Errorf("find the sources of %s: %w: %s", module, cmp.Or(err, jsonErr), found.Error)
	}
	return found.Dir, nil
}

// cacheDir returns the cache for exactly these versions. Every user may read a cache that root
// made.
func cacheDir(source string) (string, error) {
	digest := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "../coredns/go.mod", "../coredns/go.sum"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", fmt.Errorf("read versions of Kubernetes' modules: %w", err)
		}
		digest.Write(text)
	}
	name := fmt.Sprintf("%s-%x", Version, digest.Sum(nil)[:4])
	const everybody = "/var/cache/isthmus/kubernetes"
	shared := filepath.Join(everybody, name)
	if _, err := os.Stat(shared); err == nil || os.Getuid() == 0 {
		return shared, nil
	}
	own, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache for the programs of Kubernetes: %w", err)
	}
	return filepath.Join(own, "isthmus", "kubernetes", name), nil
}

func build(ctx context.Context, out io.Writer, source, at, to string) error {
	name := filepath.Base(to)
	fmt.Fprintf(out, "kubernetes: building %s %s; the first time it takes minutes\n", name, Version)
	began := time.Now()
	part := to + ".part"
	verb := []string{"build"}
	if name == suite {
		verb = []string{"test", "-c", "-vet=off"} // vet would take minutes for the dependencies
	}
	cmd := exec.CommandContext(ctx, "go", append(verb, "-ldflags", stamp(), "-o", part, at)...)
	cmd.Dir = source
	if name == "coredns" { // a separate module
		cmd.Dir = filepath.Join(filepath.Dir(source), name)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if strings.HasSuffix(name, forWindows) {
		cmd.Env = append(cmd.Env, "GOOS=windows", "GOARCH=amd64")
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	said := time.NewTicker(30 * time.Second)
	defer said.Stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	for {
		select {
		case <-said.C:
			fmt.Fprintf(out, "kubernetes: building %s: %s\n", name, time.Since(began).Round(time.Second))
		case err := <-ended:
			if err != nil {
				return errors.Join(fmt.Errorf("build %s: %w: %s", name, err, tail(stderr.String())), os.RemoveAll(part))
			}
			fmt.Fprintf(out, "kubernetes: built %s in %s, %s of user CPU\n", name, time.Since(began).Round(time.Second),
				cmd.ProcessState.UserTime().Round(time.Second))
			return os.Rename(part, to)
		}
	}
}

// stamp returns linker flags that set the version of the programs, which is v0.0.0 otherwise.
func stamp() string {
	flags := []string{"-s", "-w"}
	number := strings.Split(strings.TrimPrefix(Version, "v"), ".")
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for key, value := range map[string]string{"gitVersion": Version, "gitMajor": number[0], "gitMinor": number[1], "gitTreeState": "clean"} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", p, key, value))
		}
	}
	slices.Sort(flags[2:]) // the same flags in the same order, so that builds are reproducible
	return strings.Join(flags, " ")
}

func tail(s string) string {
	const limit = 2000
	if len(s) > limit {
		s = s[len(s)-limit:]
	}
	return strings.TrimSpace(s)
}
