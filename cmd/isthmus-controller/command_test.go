// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	for args, c := range map[string]struct {
		status int
		text   string
	}{
		"--help":                     {0, "--cluster-cidr stringArray"},
		"version":                    {0, "isthmus-controller devel "},
		"":                           {2, "--cluster-cidr: give at least one range"},
		"now":                        {2, `unexpected argument "now"`},
		"--what":                     {2, "see isthmus-controller --help"},
		"--cluster-cidr=10.0.0.0":    {2, `--cluster-cidr "10.0.0.0": use an address and a prefix length`},
		"--cluster-cidr=10.0.0.1/16": {2, "10.0.0.1/16 has host bits set: use 10.0.0.0/16"},
		"--reserved-cidr=x":          {2, `--reserved-cidr "x"`},
		"--log-level=loud":           {2, `--log-level "loud"`},
		"--log-format=xml":           {2, `--log-format "xml"`},
		"--lease-duration=1s":        {2, "--lease-duration 1s: use 3s or more"},
		"--cluster-cidr=fd00::/16":   {2, "has more than 2^32 blocks of /64"},
		"--cluster-cidr=10.0.0.0/16 --http-address=x":          {2, `--http-address "x": give ADDRESS:PORT`},
		"--cluster-cidr=10.0.0.0/16 --lease=":                  {2, `lease "" in namespace "isthmus-system": name both`},
		"--cluster-cidr=10.0.0.0/16 --kubeconfig=/nonexistent": {1, "read kubeconfig /nonexistent"},
	} {
		var out bytes.Buffer
		if got := run(context.Background(), strings.Fields(args), &out, &out); got != c.status || !strings.Contains(out.String(), c.text) {
			t.Errorf("%q: exit status %d, want %d with %q, got\n%s", args, got, c.status, c.text, out.String())
		}
	}
}
