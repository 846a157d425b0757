// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const denyManifests = `
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 198.51.100.1}]}}
---
{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: scanners}, spec: {entries: [192.0.2.7, 198.51.100.0/24, "2001:db8:bad::/48"]}}
---
{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: more}, spec: {entries: [198.51.100.128/25, oops]}}
`

func TestDenyOffline(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(denyManifests), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"list", 0, `ADDRESS            VERDICT  BY
198.51.100.128/25  denied   DenyList more
192.0.2.7          denied   DenyList scanners
198.51.100.0/24    denied   DenyList scanners
2001:db8:bad::/48  denied   DenyList scanners
198.51.100.1       exempt   address of a node
`},
		{"check 198.51.100.200 198.51.100.1 192.0.2.8", 1, `ADDRESS         VERDICT  BY
198.51.100.200  denied   198.51.100.128/25 of DenyList more, 198.51.100.0/24 of DenyList scanners
198.51.100.1    exempt   198.51.100.0/24 of DenyList scanners
192.0.2.8       allowed  none
`},
		{"check -o json 2001:db8:bad::1", 1, `{
  "apiVersion": "isthmusctl.isthmus.dev/v1",
  "kind": "DenyEntries",
  "items": [
    {
      "address": "2001:db8:bad::1",
      "verdict": "denied",
      "by": [
        "2001:db8:bad::/48 of DenyList scanners"
      ]
    }
  ]
}
`},
		{"check 192.0.2.8", 0, "ADDRESS    VERDICT  BY\n192.0.2.8  allowed  none\n"},
	} {
		status, out, errs := ctl(append(strings.Fields("deny "+c.args), "-m", dir)...)
		if status != c.status || out != c.want {
			t.Errorf("%s: status %d, want %d\n%s\nwant\n%s", c.args, status, c.status, out, c.want)
		}
		if !strings.Contains(errs, `DenyList more: spec.entries[1]: "oops": write an address`) {
			t.Errorf("%s: stderr %q", c.args, errs)
		}
	}
	for _, args := range []string{"check", "check nonsense -m " + dir, "list extra -m " + dir, "list -o wide -m " + dir} {
		if status, _, errs := ctl(strings.Fields("deny " + args)...); status != 2 || errs == "" {
			t.Errorf("%s: status %d, %q", args, status, errs)
		}
	}
}
