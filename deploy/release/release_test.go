// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// checkout makes a small checkout: the chart, the manifests and the image builder of this
// one, and commands that do little and contain one module.
func checkout(t *testing.T) string {
	t.Helper()
	dir, top := filepath.Join(t.TempDir(), "checkout"), "../.."
	for _, path := range []string{"deploy/helm/isthmus", "deploy/images", "deploy/windows"} {
		if err := os.CopyFS(filepath.Join(dir, path), os.DirFS(filepath.Join(top, path))); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"LICENSE", bpfLicence, "docs/CHANGELOG.md", "deploy/isthmus.yaml", "deploy/isthmus-controller.yaml", "deploy/isthmus-uninstall.yaml"} {
		write(t, dir, path, string(read(t, top, path)))
	}
	const pflag = "github.com/spf13/pflag v1.0.10"
	write(t, dir, "go.mod", "module github.com/isthmus-net/isthmus\n\n"+regexp.MustCompile(`(?m)^go .*$`).FindString(string(read(t, top, "go.mod")))+"\n\nrequire "+pflag+"\n")
	write(t, dir, "go.sum", strings.Join(regexp.MustCompile(`(?m)^`+pflag+`[ /].*\n`).FindAllString(string(read(t, top, "go.sum")), -1), ""))
	for _, target := range targets() {
		for _, c := range target.commands {
			write(t, dir, c+"/main.go", fakeCommand)
		}
	}
	write(t, dir, leastCommand+"/main.go", "package main\n\nvar version = \"devel\"\n\nfunc main() { println(\"version\", version) }\n")
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"},
		{"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message=x"}} {
		cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-11-01T10:00:00Z", "GIT_AUTHOR_DATE=2026-11-01T10:00:00Z", "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// leastCommand has no dependencies, so that a build without caches takes seconds.
const leastCommand = "cmd/isthmus-cni"

// fakeCommand has the flags by which commands write their pages.
const fakeCommand = `package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

var version = "devel"

func main() {
	pflag.String("type", "", "")
	dir := pflag.String("dir", "", "")
	pflag.Parse()
	if *dir == "" {
		println("version", version)
		return
	}
	page := filepath.Base(os.Args[0]) + ".8"
	if page == "isthmusctl.8" {
		page = "isthmusctl.1"
	}
	if err := errors.Join(os.MkdirAll(*dir, 0o700), os.WriteFile(filepath.Join(*dir, page), []byte(version+" "+os.Getenv("SOURCE_DATE_EPOCH")), 0o600)); err != nil {
		panic(err)
	}
}
`

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func write(t *testing.T, dir, path, content string) {
	t.Helper()
	name := filepath.Join(dir, filepath.FromSlash(path))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// makeRelease runs the program in a checkout and returns the directory of files and what
// it prints.
func makeRelease(t *testing.T, checkout string, args ...string) (string, string) {
	t.Helper()
	t.Chdir(checkout)
	var w, progress bytes.Buffer
	out := filepath.Join(t.TempDir(), "out")
	if err := run(t.Context(), append([]string{"-version", "0.2.0", "-o", out}, args...), &w, &progress); err != nil {
		t.Fatal(err)
	}
	if step := "release: build for windows-amd64\n"; !strings.Contains(progress.String(), step) {
		t.Errorf("progress %q lacks %q", progress.String(), step)
	}
	return out, w.String()
}

// unpack returns the files of an archive, by name.
func unpack(t *testing.T, name string) map[string][]byte {
	t.Helper()
	files, content := make(map[string][]byte), read(t, name)
	if filepath.Ext(name) == ".zip" {
		r, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.File {
			c, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			if files[f.Name], err = io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	zr, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zr); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReproducible makes a release in two directories, under other settings of the
// machine, and compares every byte.
func TestReproducible(t *testing.T) {
	one, two := checkout(t), checkout(t)
	first, text := makeRelease(t, one)
	if !strings.Contains(text, " commands=17 modules=1; not signed: ") {
		t.Errorf("summary: %s", text)
	}
	t.Setenv("TZ", "Asia/Kathmandu")
	t.Setenv("GOFLAGS", "-mod=mod -v")
	t.Setenv("GOAMD64", "v3")
	second, _ := makeRelease(t, two)
	n, err := sameFiles(first, second)
	if err != nil {
		t.Error(err)
	}
	if n != 19 {
		t.Errorf("%d files, want 19", n)
	}
	checkArchives(t, first)
	checkSums(t, first)
	checkBills(t, first)
}

// TestCompilerIsReproducible builds a command in two directories, with empty build caches.
func TestCompilerIsReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles Go's runtime twice")
	}
	var built [][]byte
	for range 2 {
		src, err := findSource(t.Context(), checkout(t))
		if err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		one := target{"linux", "amd64", []string{leastCommand}}
		if err := src.build(t.Context(), one, "0.2.0", out, "GOCACHE="+t.TempDir()); err != nil {
			t.Fatal(err)
		}
		content := read(t, out, "isthmus-cni")
		if bytes.Contains(content, []byte(src.dir)) {
			t.Errorf("the binary holds the directory %s", src.dir)
		}
		built = append(built, content)
	}
	if !bytes.Equal(built[0], built[1]) {
		t.Error("the same source gives different binaries")
	}
}

func checkArchives(t *testing.T, dir string) {
	t.Helper()
	for name, commands := range map[string][]string{
		"isthmus-0.2.0-linux-amd64.tar.gz": {"isthmus-agent", "isthmus-cni", "isthmus-controller", "isthmus-relay", "isthmusctl"},
		"isthmus-0.2.0-linux-arm64.tar.gz": {"isthmus-agent", "isthmus-cni", "isthmus-controller", "isthmus-relay", "isthmusctl"},
		"isthmus-0.2.0-windows-amd64.zip":  {"isthmus-agent.exe", "isthmus-cni.exe", "isthmus-conformance.exe", "isthmus-controller.exe", "isthmus-relay.exe", "isthmus-smoke.exe", "isthmusctl.exe", "try.ps1", "loopback.ps1"},
	} {
		files := unpack(t, filepath.Join(dir, name))
		top := strings.TrimSuffix(strings.TrimSuffix(name, ".zip"), ".tar.gz")
		for _, f := range append(commands, "LICENSE", "CHANGELOG.md", "licences/std/LICENSE", "licences/std/PATENTS", "licences/isthmus-bpf/LICENSE", "licences/github.com/spf13/pflag/LICENSE") {
			if len(files[top+"/"+f]) == 0 {
				t.Errorf("%s has no %s", name, f)
			}
		}
		if top != "isthmus-0.2.0-linux-amd64" {
			continue
		}
		for _, name := range []string{"man1/isthmusctl.1", "man8/isthmus-agent.8", "man8/isthmus-controller.8", "man8/isthmus-relay.8"} {
			if page := string(files[top+"/man/"+name]); page != "0.2.0 1793527200" {
				t.Errorf("the manual page %s is %q", name, page)
			}
		}
		binary := filepath.Join(t.TempDir(), "isthmusctl")
		if err := os.WriteFile(binary, files[top+"/isthmusctl"], 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(binary).CombinedOutput(); err != nil || string(out) != "version 0.2.0\n" {
			t.Errorf("isthmusctl of the archive: %v, %s", err, out)
		}
	}
	chart := unpack(t, filepath.Join(dir, "isthmus-0.2.0.tgz"))
	if about := string(chart["isthmus/Chart.yaml"]); !strings.Contains(about, "\nversion: 0.2.0\n") || !strings.Contains(about, "\nappVersion: \"0.2.0\"\n") {
		t.Errorf("the package of the chart has\n%s", about)
	}
	if len(chart["isthmus/rbac/agent.yaml"]) == 0 || len(chart["isthmus/crds/denylists.yaml"]) == 0 {
		t.Error("the package of the chart has no roles or no kinds")
	}
	manifest := string(read(t, dir, "isthmus-0.2.0.yaml"))
	images := string(read(t, dir, "isthmus-0.2.0-images.txt"))
	for _, tag := range []string{"0.2.0", "0.2.0-windows"} {
		if !strings.Contains(manifest, "image: ghcr.io/isthmus-net/isthmus:"+tag+"\n") || !strings.Contains(images, " ghcr.io/isthmus-net/isthmus:"+tag+" sha256:") {
			t.Errorf("manifest or list of images do not name tag %s:\n%s", tag, images)
		}
	}
	if !strings.Contains(images, "\nindex ghcr.io/isthmus-net/isthmus:0.2.0 sha256:") {
		t.Errorf("the list of images has no index:\n%s", images)
	}
}

// checkSums has sha256sum check that all files are listed.
func checkSums(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sha256sum", "--check", "--strict", mark)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.Name() != mark && !strings.Contains(string(out), f.Name()+": OK\n") {
			t.Errorf("%s does not list %s", mark, f.Name())
		}
	}
}

func TestVersions(t *testing.T) {
	for v, want := range map[string]string{
		"0.2.0": "", "1.0.0-rc.1": "", "10.20.30": "",
		"":                   "no version",
		"v0.2.0":             "leave out the v",
		"0.2":                "MAJOR.MINOR.PATCH",
		"01.2.3":             "MAJOR.MINOR.PATCH",
		"0.2.0-":             "MAJOR.MINOR.PATCH",
		"0.2.0-01":           "MAJOR.MINOR.PATCH",
		"0.2.0+build":        "no build metadata",
		"40cfd2c":            "MAJOR.MINOR.PATCH",
		"0.2.0; touch /here": "MAJOR.MINOR.PATCH",
	} {
		err := checkVersion(v)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", v, err, want)
		}
	}
}

// TestRefusals lists what the program does not release.
func TestRefusals(t *testing.T) {
	dir := checkout(t)
	t.Chdir(dir)
	full := t.TempDir()
	write(t, full, "mine", "x")
	out := filepath.Join(t.TempDir(), "out")
	refused := func(want string, args ...string) {
		t.Helper()
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	refused("give a directory", "-version", "0.2.0")
	refused("leave out the v", "-version", "v0.2.0", "-o", out)
	refused("no arguments", "-version", "0.2.0", "-o", out, "more")
	refused("holds no release", "-version", "0.2.0", "-o", full)
	refused("no such file", "-version", "0.2.0", "-o", out, "-key", filepath.Join(full, "none"))
	write(t, dir, "deploy/new", "x")
	refused("?? deploy/new\n", "-version", "0.2.0", "-o", out)
	if list, _ := os.ReadDir(full); len(list) != 1 {
		t.Error("a directory that holds no release was changed")
	}
	// What is not committed is released on request, and the provenance says so.
	write(t, dir, "cmd/isthmusctl/other.go", "package main\n")
	src, err := findSource(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := provenance(src, "0.2.0", nil); err != nil || !strings.Contains(string(text), `"uncommittedChanges": true`) {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestSameFiles checks that the comparison of builds finds every kind of difference.
func TestSameFiles(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	if _, err := sameFiles(a, b); err == nil {
		t.Error("two empty directories are the same release")
	}
	for _, dir := range []string{a, b} {
		write(t, dir, "x", "same")
	}
	if n, err := sameFiles(a, b); err != nil || n != 1 {
		t.Error(n, err)
	}
	write(t, a, "y", "1")
	write(t, b, "z", "1")
	write(t, b, "x", "diff")
	_, err := sameFiles(a, b)
	for _, want := range []string{"x: 4 and 4 bytes", "y: only the first", "z: only the second"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// modulesOf returns the modules of a binary as "go version -m" prints them.
func modulesOf(t *testing.T, binary string) []string {
	t.Helper()
	out, err := exec.Command("go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(string(out), -1) {
		all = append(all, m[1]+"@"+m[2])
	}
	slices.Sort(all)
	return all
}
