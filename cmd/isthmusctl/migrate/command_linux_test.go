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
	"github.com/isthmus-net/isthmus/linux/takeover"
)

func run(t *testing.T, args ...string) (status int, errs string) {
	t.Helper()
	status, _, errs = runBoth(t, args...)
	return status, errs
}

func runBoth(t *testing.T, args ...string) (status int, text, errs string) {
	t.Helper()
	var out, err bytes.Buffer
	e := cli.Env{Stdout: &out, Stderr: &err}
	status = e.Run(t.Context(), append([]string{"migrate"}, args...), migrate.Commands(e)...)
	return status, out.String(), err.String()
}

// A dry run of a migration that has begun prints what the next call would do, from the file of the progress, and changes nothing.
func TestDryRunOfABegunMigration(t *testing.T) {
	dir := t.TempDir()
	plan := takeover.Plan{Network: takeover.Network{From: "bridge", Name: "n", ConfDir: dir}, Steps: []takeover.Step{
		{Kind: takeover.SetSysctl, Path: "ipv4/conf/a/rp_filter", Was: "1", Value: "2"},
		{Kind: takeover.KeepConf, Path: dir + "/10-n.conflist"}, {Kind: takeover.RemoveBridge}}}
	first, second, third := "set sysctl net.ipv4.conf.a.rp_filter", "rename "+dir+"/10-n.conflist", "remove bridge"
	to, back := []string{"run", "--dry-run", "--from", "bridge", "--state-dir", dir}, []string{"rollback", "--dry-run", "--state-dir", dir}
	for _, c := range []struct {
		name     string
		progress *takeover.Progress
		args     []string
		status   int
		want     []string
		not      string
	}{
		{"nothing", nil, back, 0, []string{"no migration to reverse"}, "reverse:"},
		{"interrupted, run", &takeover.Progress{Done: 1}, to, 0, []string{"1 of its 3 steps are done", second, third}, first},
		{"interrupted, plan", &takeover.Progress{Done: 1}, []string{"plan", "--from", "bridge", "--state-dir", dir}, 0, []string{second, third}, first},
		{"interrupted, of another network", &takeover.Progress{Done: 1}, []string{"plan", "--from", "flannel", "--state-dir", dir}, 2, []string{"give --from bridge"}, third},
		{"interrupted, rollback", &takeover.Progress{Done: 1}, back, 0, []string{"2 steps", "reverse: " + second, "reverse: " + first, "--mode=policy"}, third},
		{"being reversed, run", &takeover.Progress{Done: 1, Back: true}, to, 2, []string{"run migrate rollback"}, third},
		{"being reversed, rollback", &takeover.Progress{Done: 1, Back: true}, back, 0, []string{"1 steps", "reverse: " + first}, second},
		{"complete, rollback", &takeover.Progress{Done: 3, Ran: true}, back, 0, []string{"3 steps", "05-isthmus.conflist would be removed"}, "meanwhile"},
		{"given back, rollback", &takeover.Progress{Done: 2, Back: true, Ran: true, Given: true}, back, 0, []string{"2 steps", "must run with --mode=policy meanwhile"}, third},
	} {
		if c.progress != nil {
			c.progress.Version, c.progress.Plan = 1, plan
			if err := takeover.Save(dir)(c.progress); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := os.ReadFile(takeover.Path(dir))
		status, text, errs := runBoth(t, c.args...)
		if text += errs; status != c.status || strings.Contains(text, c.not) {
			t.Errorf("%s: status %d, %q", c.name, status, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q, want %q", c.name, text, want)
			}
		}
		if after, _ := os.ReadFile(takeover.Path(dir)); !bytes.Equal(before, after) {
			t.Errorf("%s: the progress changed", c.name)
		}
	}
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
