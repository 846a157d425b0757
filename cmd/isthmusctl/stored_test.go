// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

// With --stored the commands read objects that kubectl prints from a live cluster, with the
// same meaning as for an agent. Without it they reject them as an API server would.
func TestStored(t *testing.T) {
	dump, err := os.ReadFile("../../common/kube/manifests/testdata/stored/dump.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := clitest.Directory(t, string(dump))
	for _, c := range []struct {
		args   string
		status int
		out    string
	}{
		{"explain -m DIR --from 10.0.2.77 --to shop/web-5d9c-x7k2p -p 80", 0, "ingress rule 0 of NetworkPolicy shop/old"},
		{"explain -m DIR --from 10.0.2.9 --to shop/web-5d9c-x7k2p -p 80", 1, "isolated for ingress by NetworkPolicy shop/old"},
		{"explain -m DIR --from 10.0.4.1 --to shop/web-5d9c-x7k2p -p 80", 0, "ingress rule 0 of NetworkPolicy shop/old"},
		{"matrix -m DIR", 0, "1 pods in 1 groups"},
		{"compile -m DIR", 0, "node node1 (linux): 1 pods"},
		{"verify -m DIR", 0, "verify: policies=2 "},
		{"lint -m DIR --fail-on error", 0, "errors=0 warnings="},
		{"diff DIR DIR", 0, "changes=0"},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "DIR", dir))
		if status, out, errs := ctl(append(args, "--stored")...); status != c.status || !strings.Contains(out, c.out) {
			t.Errorf("%s --stored: exit status %d, %q, %q", c.args, status, out, errs)
		}
		status, out, errs := ctl(args...)
		if want := map[bool]int{false: 2, true: 1}[args[0] == "lint"]; status != want || !strings.Contains(out+errs, "metadata.finalizers[0]") {
			t.Errorf("%s: exit status %d, %q, %q", c.args, status, out, errs)
		}
	}
}
