// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"github.com/isthmus-net/isthmus/common/kube/convert"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Files and directories are read as one cluster: the node of one file gets the
// DaemonSet's pod of another, and the last object of a name counts.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n",
		"a/bad.yaml":  "kind: Pod\n",
		"b.json": `{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "x"},
			"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}}}`,
		"c.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {os: new}}\n",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var all []File
	for _, p := range []string{"a", "b.json", "c.yaml"} {
		files, errs := ReadFiles(context.Background(), filepath.Join(dir, p), DefaultLimits())
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		all = append(all, files...)
	}
	o, warnings, errs := ParseFiles(all, DefaultLimits())
	if len(o.Pods) != 1 || o.Pods[0].Node != "n1" || len(o.Nodes) != 1 || o.Nodes[0].Labels.String() != "os=new" {
		t.Errorf("pods %v nodes %v", o.Pods, o.Nodes)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].String(), "the last one counts") {
		t.Errorf("warnings %v", warnings)
	}
	if len(errs) != 1 || errs[0].File != filepath.Join(dir, "a", "bad.yaml") {
		t.Errorf("errors %v", errs)
	}
}

func TestFilesErrors(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, make([]byte, 100), 0o644); err != nil {
		t.Fatal(err)
	}
	limits := DefaultLimits()
	limits.FileBytes = 99
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): filepath.Join(dir, "none") + ": open file: " + syscall.ENOENT.Error(),
		large:                      large + ": more than 99 bytes: split the file or raise the limit",
		dir:                        large + ": more than 99 bytes: split the file or raise the limit",
	} {
		files, errs := ReadFiles(context.Background(), path, limits)
		if len(files) > 0 || len(errs) != 1 || errs[0].Error() != want {
			t.Errorf("%s: %v, %v, want %s", path, files, errs, want)
		}
	}
}

func TestDefaultSpec(t *testing.T) {
	got, err := convert.DefaultSpec([]byte(`{"spec": {"podSelector": {}, "egress": [{"ports": [{"port": 53}]}]}}`))
	if want := `{"podSelector":{},"egress":[{"ports":[{"protocol":"TCP","port":53}]}],"policyTypes":["Ingress","Egress"]}`; err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if _, err := convert.DefaultSpec([]byte(`{"spec": 1}`)); err == nil {
		t.Error("a number is accepted as spec")
	}
}
