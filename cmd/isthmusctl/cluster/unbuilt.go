// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

// Files that make a directory the input of another program. That program changes the manifests, so an answer about them
// as they are would be wrong.
var kustomizations = []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}

const chartFile = "Chart.yaml"

// maxKustomization is the largest kustomization file that is read, in bytes.
const maxKustomization = 1 << 20

// unbuilt returns an error if a directory is a Helm chart, or a kustomization that does more than list manifests below
// the directory. The error names the command that builds it. use is how the output is passed on.
func unbuilt(dir, use string) error {
	if _, err := os.Stat(filepath.Join(dir, chartFile)); err == nil {
		return fmt.Errorf("%s: a Helm chart, whose templates are not manifests: render it first: helm template NAME %s %s", dir, quoted(dir), use)
	}
	for _, name := range kustomizations {
		why, err := kustomizes(dir, name)
		if err != nil {
			return err
		}
		if why != "" {
			return fmt.Errorf("%s: kustomize changes these manifests (%s has %s): build them first: kubectl kustomize %s %s",
				dir, name, why, quoted(dir), use)
		}
	}
	return nil
}

// Unbuilt is the error for a directory that another program must build before isthmusctl test can read it.
func Unbuilt(dir string) error { return unbuilt(dir, "> built.yaml, and name built.yaml") }

// quoted returns a path as an argument of a shell.
func quoted(path string) string {
	if path != "" && strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// kustomizes returns what a kustomization does besides listing manifests below its directory. It is empty if there is no
// such file.
func kustomizes(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil // reading the directory names the error
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKustomization+1))
	if err == nil && len(text) > maxKustomization {
		err = fmt.Errorf("more than %d bytes", maxKustomization)
	}
	var fields map[string]yaml.Node
	if err == nil {
		err = yaml.Unmarshal(text, &fields)
	}
	if err != nil {
		return "", fmt.Errorf("%s: read kustomization: %s: fix it, or remove it", path, strings.Join(strings.Fields(err.Error()), " "))
	}
	var does []string
	for key, value := range fields {
		switch {
		case slices.Contains([]string{"apiVersion", "kind", "metadata"}, key), value.Kind == yaml.SequenceNode && len(value.Content) == 0:
		case key != "resources":
			does = append(does, key)
		default:
			does = append(does, elsewhere(dir, value)...)
		}
	}
	slices.Sort(does)
	return cli.Shorten(does, 3), nil
}

// elsewhere lists the resources that are not below a directory.
func elsewhere(dir string, resources yaml.Node) (found []string) {
	for _, r := range resources.Content {
		path := filepath.FromSlash(r.Value)
		_, err := os.Stat(filepath.Join(dir, path))
		switch {
		case err != nil || !filepath.IsLocal(path):
			found = append(found, "the resource "+r.Value)
		default:
			if why := nested(filepath.Join(dir, path)); why != "" {
				found = append(found, why)
			}
		}
	}
	return found
}

// nested describes a directory of a kustomization that is one itself and changes manifests.
func nested(dir string) string {
	for _, name := range kustomizations {
		why, err := kustomizes(dir, name)
		if err != nil || why != "" {
			return "the resource " + dir
		}
	}
	return ""
}

// overlays returns a warning for each kustomization below a directory that changes manifests: they are read as they
// are. A directory of unusual size is searched in part.
func overlays(top, use string) (found []manifests.Warning) {
	left := maxSearched
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch left--; {
		case err != nil || left < 0: // reading the directory names the error
			return filepath.SkipAll
		case d.IsDir() && path != top && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.IsDir() || filepath.Dir(path) == filepath.Clean(top) || !slices.Contains(kustomizations, d.Name()):
			return nil
		}
		dir := filepath.Dir(path)
		if why, err := kustomizes(dir, d.Name()); why != "" && err == nil {
			below, _ := filepath.Rel(top, path)
			found = append(found, manifests.Warning{File: filepath.ToSlash(below), Detail: fmt.Sprintf("kustomize changes what this names (%s), "+
				"but it was read as it is: for the changed manifests run kubectl kustomize %s %s", why, quoted(dir), use)})
		}
		return nil
	})
	return found
}

// maxSearched is the number of files and directories that are searched for kustomizations.
const maxSearched = 100_000

// chartErrors replaces the errors of the templates of charts below a directory by one for each chart.
func chartErrors(top, use string, errs []manifests.DocumentError) []manifests.DocumentError {
	var kept []manifests.DocumentError
	seen := make(map[string]bool)
	for _, e := range errs {
		chart := chartOf(top, e.File)
		if chart == "" {
			kept = append(kept, e)
			continue
		}
		if !seen[chart] {
			full := filepath.Join(top, filepath.FromSlash(chart))
			kept = append(kept, manifests.DocumentError{File: chart,
				Detail: fmt.Sprintf("a Helm chart, whose templates are not manifests: render it first: helm template NAME %s %s", quoted(full), use)})
		}
		seen[chart] = true
	}
	return kept
}

// chartOf returns the directory of the chart to whose templates a file belongs, or "".
func chartOf(top, file string) string {
	for dir := filepath.ToSlash(filepath.Dir(file)); dir != "." && dir != "/" && dir != ""; dir = filepath.ToSlash(filepath.Dir(dir)) {
		if filepath.Base(dir) != "templates" {
			continue
		}
		chart := filepath.ToSlash(filepath.Dir(dir))
		if _, err := os.Stat(filepath.Join(top, filepath.FromSlash(chart), chartFile)); err == nil {
			return chart
		}
	}
	return ""
}

// real returns the absolute path of a file without symbolic links.
func real(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return path
}
