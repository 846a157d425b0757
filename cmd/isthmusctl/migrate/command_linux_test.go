// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/migrate"
)

func run(t *testing.T, args ...string) (status int, errs string) {
	t.Helper()
	var out, err bytes.Buffer
	e := cli.Env{Stdout: &out, Stderr: &err}
	status = e.Run(t.Context(), append([]string{"migrate"}, args...), migrate.Commands(e)...)
	return status, err.String()
}

// A command line or a network that cannot be read gives status 2 and one line with the remedy.
func TestPlanRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plan := func(args ...string) []string {
		return append([]string{"plan", "--state-dir", dir, "--cni-conf-dir", dir, "--cni-cache-dir", dir}, args...)
	}
	for _, c := range []struct {
		conf string
		args []string
		want string
	}{
		{"", plan(), `--from "": give one of bridge, flannel, kubenet`},
		{"", plan("--from", "calico"), `--from "calico": give one of`},
		{"", []string{"plan", "--from", "bridge", "--state-dir", "x"}, `--state-dir "x": give an absolute path`},
		{"", plan("--from", "bridge", "-o", "xml"), "xml"},
		{"", plan("--from", "bridge"), "no CNI configuration in " + dir},
		{"", plan("--from", "kubenet"), "give the ranges of the node with --pod-cidr"},
		{"", plan("--from", "kubenet", "--pod-cidr", "10.1.0.9/24"), "without host bits"},
		{"", plan("--from", "kubenet", "--pod-cidr", "10.1.0.0/24", "--cluster-cidr", "x"), `--cluster-cidr "x"`},
		{"{", plan("--from", "bridge"), "parse " + filepath.Join(dir, "10.conflist")},
		{`{"name":"n","type":"ptp"}`, plan("--from", "bridge"), `the first plugin is "ptp"`},
		{`{"name":"n","type":"bridge","bridge":"none0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`,
			plan("--from", "bridge", "--pod-cidr", "10.2.0.0/24"), "pods cannot keep their addresses"},
		{`{"name":"n","type":"bridge","bridge":"none0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`,
			plan("--from", "bridge"), "find bridge none0 of network n"},
		{`{"name":"n","type":"flannel","subnetFile":"` + dir + `/none"}`, plan("--from", "flannel"), "no such file"},
	} {
		if c.conf != "" {
			write("10.conflist", c.conf)
		}
		if status, errs := run(t, c.args...); status != 2 || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: status %d, %q, want %q", c.args, status, errs, c.want)
		}
	}
}
