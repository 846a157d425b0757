// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/kubernetes"
)

// pauseImage is the image of the container that holds the namespaces of a pod.
const pauseImage = "registry.k8s.io/pause:3.10.2"

// testImages are the image names in the cases. All of them get the same image: agnhost, with the
// tools that scripts in the cases call.
var testImages = []string{
	"registry.k8s.io/e2e-test-images/agnhost:2.63.0", "registry.k8s.io/e2e-test-images/agnhost:2.55", "registry.k8s.io/e2e-test-images/agnhost:2.45",
	"registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0", "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
	"registry.k8s.io/build-image/distroless-iptables:v0.9.6",
}

// outOfWindowImage is the image of a server that sends segments out of the TCP window, for a case of the suite network.
const outOfWindowImage = "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4"

// tools are the commands of this machine that go into the image, with their libraries.
var tools = []string{"bash", "curl", "dig", "nslookup", "host", "nc", "ip", "ss", "getent", "conntrack"}

// wget is what the image has instead of Debian's static Busybox, which dies of a segmentation fault in wget. It takes the
// flags that the cases give: -q -O - -T SECONDS URL.
const wget = `#!/bin/sh
while getopts qO:T: flag; do
	test $flag != T || limit=$OPTARG
done
shift $((OPTIND - 1))
exec curl --silent --show-error --fail --max-time ${limit:-10} "$1"
`

// buildImages makes the image archives that nodes import.
func (l *lab) buildImages(ctx context.Context) error {
	if err := os.MkdirAll(l.images, 0o755); err != nil {
		return err
	}
	top, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the sources of Isthmus: %w", err)
	}
	source := strings.TrimSpace(string(top))
	writer := filepath.Join(l.dir, "write-image")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", writer, ".")
	cmd.Dir = filepath.Join(source, "deploy", "images")
	if _, err := output(cmd); err != nil {
		return err
	}
	pause, agnhost := filepath.Join(l.dir, "pause"), filepath.Join(l.dir, "agnhost")
	cmd = exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", filepath.Join(pause, "pause"), "./test/e2e/pause")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if _, err := output(cmd); err != nil {
		return err
	}
	if err := l.agnhostRoot(ctx, agnhost); err != nil {
		return fmt.Errorf("prepare agnhost image: %w", err)
	}
	if !kernelHasSCTP() {
		if err := replaceAgnhost(ctx, source, agnhost); err != nil {
			return err
		}
	}
	for _, image := range [][]string{
		{"-root", pause, "-name", pauseImage, "-entrypoint", "/pause", "-o", filepath.Join(l.images, "pause.tar")},
		{"-root", agnhost, "-name", strings.Join(testImages, ","), "-entrypoint", "/agnhost", "-cmd", "pause", "-o", filepath.Join(l.images, "agnhost.tar")},
	} {
		if _, err := output(exec.CommandContext(ctx, writer, image...)); err != nil {
			return err
		}
	}
	if slices.Contains(l.suites, "network") {
		if err := l.buildOutOfWindow(writer); err != nil {
			return err
		}
	}
	if l.besideFlannel() {
		if err := l.buildFlannel(ctx, source, writer); err != nil {
			return err
		}
	}
	// The image of Isthmus is the released one.
	if l.reference, err = referenceOf(l.image); err != nil {
		return fmt.Errorf("find image of Isthmus: %w: run make images", err)
	}
	path, err := filepath.Abs(l.image)
	if err != nil {
		return err
	}
	return os.Symlink(path, filepath.Join(l.images, "isthmus.tar"))
}

// buildOutOfWindow makes the archive of outOfWindowImage with a writer of images.
func (l *lab) buildOutOfWindow(writer string) error {
	root := filepath.Join(l.dir, "out-of-window")
	if err := copyFile(filepath.Join(l.bin, kubernetes.OutOfWindow), filepath.Join(root, kubernetes.OutOfWindow)); err != nil {
		return err
	}
	_, err := output(exec.Command(writer, "-root", root, "-name", outOfWindowImage, "-entrypoint", "/"+kubernetes.OutOfWindow,
		"-o", filepath.Join(l.images, "out-of-window.tar")))
	return err
}

// kernelHasSCTP reports whether programs can open SCTP sockets.
func kernelHasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// replaceAgnhost puts the program for kernels without SCTP before agnhost in an image.
func replaceAgnhost(ctx context.Context, source, root string) error {
	program := filepath.Join(root, "agnhost")
	if err := os.Rename(program, program+"-kubernetes"); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", program, "./test/e2e/agnhost")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	_, err := output(cmd)
	return err
}

// referenceOf returns the name under which containerd imports an archive.
func referenceOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("read %s: no index.json: %w", path, err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(r).Decode(&index); err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
		for _, m := range index.Manifests {
			if name := m.Annotations["io.containerd.image.name"]; name != "" {
				return name, nil
			}
		}
		return "", fmt.Errorf("read %s: its image has no name", path)
	}
}

// agnhostRoot fills a directory with the content of upstream's image that the cases need: agnhost,
// its certificate for localhost, a shell and tools.
func (l *lab) agnhostRoot(ctx context.Context, root string) error {
	for _, d := range []string{"bin", "usr/bin", "etc", "proc", "sys", "dev", "root", "var/run"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o777); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	porter, err := kubernetes.Source(ctx, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	porter = filepath.Join(porter, "test", "images", "agnhost", "porter")
	copies := map[string]string{
		filepath.Join(l.bin, "agnhost"): "agnhost", "/bin/busybox": "bin/busybox",
		filepath.Join(porter, "localhost.crt"): "localhost.crt", filepath.Join(porter, "localhost.key"): "localhost.key",
	}
	for from, to := range copies {
		if err := copyFile(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	if err := copyTools(root, tools...); err != nil {
		return err
	}
	return linkTools(root)
}

// copyTools copies commands of this machine into an image, with their libraries.
func copyTools(root string, tools ...string) error {
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		if err != nil {
			return fmt.Errorf("%w: run make deps-e2e", err)
		}
		libraries, err := librariesOf(path)
		if err != nil {
			return err
		}
		for _, lib := range libraries {
			if err := copyFile(lib, filepath.Join(root, lib)); err != nil {
				return err
			}
		}
		if err := copyFile(path, filepath.Join(root, "usr", "bin", tool)); err != nil {
			return err
		}
	}
	return nil
}

// linkTools makes the shell and the small tools available under their names.
func linkTools(root string) error {
	if err := os.WriteFile(filepath.Join(root, "usr/bin/wget"), []byte(wget), 0o755); err != nil {
		return err
	}
	list, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return fmt.Errorf("list busybox's tools: %w", err)
	}
	for _, name := range strings.Fields(string(list)) {
		if _, err := os.Lstat(filepath.Join(root, "usr/bin", name)); err == nil || name == "sh" || name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	// The shell of Busybox would prefer its own tools to the full ones.
	for _, name := range []string{"bin/sh", "bin/bash"} {
		if err := os.Symlink("/usr/bin/bash", filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\n"), 0o644))
}

// librariesOf returns the libraries of a program; none for a static one.
func librariesOf(path string) ([]string, error) {
	out, err := exec.Command("ldd", path).Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) { // a static program
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for libraries of %s: %w", path, err)
	}
	var all []string
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			all = append(all, word)
		}
	}
	return all, nil
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	content, err := os.ReadFile(from) // the target of a symbolic link
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}
