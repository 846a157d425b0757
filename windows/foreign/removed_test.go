// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// deaf is an HNS that answers requests to remove or update policies of an endpoint with a code, or with success if that is 0, and does
// nothing.
type deaf struct {
	*hnstest.Fake
	codes map[hns.RequestType]uint32
}

func (d deaf) ModifyEndpoint(ctx context.Context, id string, r hns.RequestType, policies ...hns.Policy) (hns.Endpoint, error) {
	code, ok := d.codes[r]
	if !ok {
		return d.Fake.ModifyEndpoint(ctx, id, r, policies...)
	}
	if code != 0 {
		return hns.Endpoint{}, hns.NewError("ModifyEndpoint", code, "not done")
	}
	return d.Fake.ModifyEndpoint(ctx, id, hns.Add)
}

// TestRemoveIsIgnored uninstalls on an HNS that does not remove policies, which Azure NPM avoids to ask for: it says that it has no such
// policy, or nothing. Nothing of a policy is left in force, as an uninstalled agent would never end that, and everything of other programs is.
func TestRemoveIsIgnored(t *testing.T) {
	for _, code := range []uint32{0, hns.CodePolicyNotFound, hns.CodeNotFound, hns.CodeInvalidPolicy} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("%#x %t", code, all), func(t *testing.T) {
				n := newNode(t, hns.L2Bridge)
				n.fake.UpdateReplacesAll = all
				plain := n.chained("plain", "10.1.0.5", theirs()[:1]...)
				azure := n.chained("azure", "10.1.0.6", theirs()...)
				n.apply(state(plain, azure))
				n.want(plain, "in out wire")
				for range 2 {
					if err := foreign.Remove(ctx, deaf{n.fake, map[hns.RequestType]uint32{hns.Remove: code}}, n.file, 0); err != nil {
						t.Fatal(err)
					}
					n.want(plain, "in other out wire")
					if text := n.raw(); strings.Count(text, `"Id": "isthmus allow `) != 4 || strings.Count(text, "isthmus") != 4 || strings.Count(text, `"Type": "ACL"`) != 7 {
						t.Errorf("after removal\n%s", text)
					}
				}
				if files, err := filepath.Glob(n.file + "*"); err != nil || len(files) > 0 {
					t.Errorf("files are left: %v, %v", files, err)
				}
				n.start()
				n.add(plain)
				n.apply(state(plain))
				n.want(plain, "in out wire")
			})
		}
	}
}

// TestNothingIsRemoved uninstalls on an HNS that changes no endpoint. That is an error which names the endpoint, and the file stays for the
// next attempt.
func TestNothingIsRemoved(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	err := foreign.Remove(ctx, deaf{n.fake, map[hns.RequestType]uint32{hns.Remove: 0, hns.Update: 0}}, n.file, 0)
	if err == nil || !strings.Contains(err.Error(), "hns endpoint web: hns accepted the request and kept acls of isthmus") {
		t.Errorf("error %v", err)
	}
	if files, err := filepath.Glob(n.file); err != nil || len(files) != 1 {
		t.Errorf("files: %v, %v", files, err)
	}
	n.want(s, "in out")
}

// TestRemoveBesideTiers uninstalls while endpoints have ACLs in tiers, with and without ours beside them: ours are removed, and those stay.
func TestRemoveBesideTiers(t *testing.T) {
	n := newNodeOn(t, hns.Server2025, hns.L2Bridge)
	tier := acl("tier", hns.In, hns.Allow, 200, "")
	tier.Type = hns.TypeTierACL
	n.make("other", "10.1.0.4", n.fake.AddNamespace(), tier)
	s := n.chained("web", "10.1.0.5")
	n.apply(state(s))
	list, err := n.fake.Endpoints(ctx, n.network)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Name == "web" {
			if _, err := n.fake.ModifyEndpoint(ctx, e.ID, hns.Add, tier); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := foreign.Remove(ctx, n.fake, n.file, 0); err != nil {
		t.Error(err)
	}
	if text := n.raw(); strings.Contains(text, "isthmus") || strings.Count(text, hns.TypeTierACL) != 2 {
		t.Errorf("after removal\n%s", text)
	}
}
