// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
	helmVersion  = regexp.MustCompile(`(?m)^appVersion: "(.*)"$`)
)

// packChart writes the package of the chart, as "helm package" names it. Chart, images and
// commands of a release have one version. It returns the name of the file.
func packChart(s source, version, out string) (string, error) {
	const dir = "deploy/helm/isthmus"
	files := make(map[string]entry)
	err := fs.WalkDir(os.DirFS(filepath.Join(s.dir, dir)), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s/%s is not a plain file", dir, path)
		}
		content, err := os.ReadFile(filepath.Join(s.dir, dir, filepath.FromSlash(path)))
		files[path] = entry{content: content}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read chart: %w", err)
	}
	about := files["Chart.yaml"].content
	if !chartVersion.Match(about) || !appVersion.Match(about) {
		return "", fmt.Errorf("%s/Chart.yaml has no version or no appVersion", dir)
	}
	about = chartVersion.ReplaceAll(about, []byte("version: "+version))
	files["Chart.yaml"] = entry{content: appVersion.ReplaceAll(about, []byte(`appVersion: "`+version+`"`))}
	content, err := packTar("isthmus", files, s.time)
	if err != nil {
		return "", err
	}
	name := "isthmus-" + version + ".tgz"
	return name, writeFile(filepath.Join(out, name), content)
}

// copyManifests writes the manifests that the chart renders, with the images of a version.
// It returns the names of the files.
func copyManifests(s source, version, out string) ([]string, error) {
	about, err := os.ReadFile(filepath.Join(s.dir, "deploy/helm/isthmus/Chart.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	m := helmVersion.FindSubmatch(about)
	if m == nil {
		return nil, fmt.Errorf("deploy/helm/isthmus/Chart.yaml has no appVersion in quotes")
	}
	old := string(m[1])
	var names []string
	for _, name := range []string{"isthmus", "isthmus-controller", "isthmus-uninstall"} {
		content, err := os.ReadFile(filepath.Join(s.dir, "deploy", name+".yaml"))
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		for _, place := range []string{"app.kubernetes.io/version: \"%s\"\n", "image: ghcr.io/isthmus-net/isthmus:%s\n",
			"image: ghcr.io/isthmus-net/isthmus:%s-windows\n"} {
			content = bytes.ReplaceAll(content, fmt.Appendf(nil, place, old), fmt.Appendf(nil, place, version))
		}
		if n := bytes.Count(content, []byte("isthmus:"+version)); n == 0 || bytes.Contains(content, []byte("isthmus:"+old)) && old != version {
			return nil, fmt.Errorf("deploy/%s.yaml names an image of another version than %s: run make manifests", name, old)
		}
		file := strings.Replace(name, "isthmus", "isthmus-"+version, 1) + ".yaml"
		if err := writeFile(filepath.Join(out, file), content); err != nil {
			return nil, err
		}
		names = append(names, file)
	}
	return names, nil
}

// writeFile writes a file whatever the umask is.
func writeFile(name string, content []byte) error {
	if err := os.WriteFile(name, content, 0o644); err != nil {
		return err
	}
	return os.Chmod(name, 0o644)
}
