// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

func TestParseDNS(t *testing.T) {
	d, err := model.ParseDNS([]string{"10.96.0.10", "fd96::a", "::ffff:10.96.0.11"}, []string{"shop.svc.cluster.local", "_ldap.corp.", "."}, []string{"ndots:5"}, "corp")
	if err != nil || d.String() != "servers 10.96.0.10 fd96::a 10.96.0.11, search shop.svc.cluster.local _ldap.corp. ., options ndots:5, domain corp" {
		t.Errorf("got %s, %v", d, err)
	}
	if d, err := model.ParseDNS(nil, nil, nil, ""); err != nil || !d.IsZero() || d.String() != "" {
		t.Errorf("nothing requested: %s, %v", d, err)
	}
	many := slices.Repeat([]string{"a"}, 129)
	for want, c := range map[string][4][]string{
		`["10.96.0.10","x"] is not valid: DNS server "x"`:            {{"10.96.0.10", "x"}},
		`[""] is not valid: DNS server ""`:                           {{""}},
		`["10.96.0.10:53"] is not valid`:                             {{"10.96.0.10:53"}},
		`["fe80::1%eth0"] is not valid`:                              {{"fe80::1%eth0"}},
		`["0.0.0.0"] is not valid`:                                   {{"0.0.0.0"}},
		`["224.0.0.1"] is not valid`:                                 {{"224.0.0.1"}},
		`["a,b"] is not valid: search domain "a,b"`:                  {nil, {"a,b"}},
		`["a b"] is not valid: search domain "a b"`:                  {nil, {"a b"}},
		`["a..b"] is not valid`:                                      {nil, {"a..b"}},
		`"] is not valid: search domain "` + strings.Repeat("a", 64): {nil, {strings.Repeat("a", 64)}},
		`["ndots:5,6"] is not valid: option "ndots:5,6"`:             {nil, nil, {"ndots:5,6"}},
		`[""] is not valid: option ""`:                               {nil, nil, {""}},
		`["a/b"] is not valid: domain "a/b"`:                         {nil, nil, nil, {"a/b"}},
		`129 values: use at most 128`:                                {nil, many},
	} {
		_, err := model.ParseDNS(c[0], c[1], c[2], strings.Join(c[3], ""))
		var bad *model.DNSError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestUsableDNS(t *testing.T) {
	servers := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}
	d, err := model.ParseDNS(servers, slices.Repeat([]string{"a"}, 33), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	usable, dropped := d.Usable()
	if !slices.Equal(usable.ServerTexts(), servers[:3]) || len(usable.Searches) != 32 || len(d.Servers) != 4 ||
		dropped != "4 DNS servers requested, the first 3 are used; 33 search domains requested, the first 32 are used" {
		t.Errorf("%s: %q", usable, dropped)
	}
	if again, dropped := usable.Usable(); !again.Equal(usable) || dropped != "" {
		t.Errorf("again: %s: %q", again, dropped)
	}
}

// FuzzParseDNS checks that accepted values survive the record, and that HNS can store them, also in
// lists with commas.
func FuzzParseDNS(f *testing.F) {
	f.Add("10.96.0.10 fd96::a", "shop.svc.cluster.local svc.cluster.local", "ndots:5", "corp")
	f.Add("::ffff:10.0.0.1", ". a. _b", "edns0", "")
	f.Add("fe80::1%1", "a,b", "x,y", "\x00")
	f.Fuzz(func(t *testing.T, servers, searches, options, domain string) {
		split := func(s string) []string {
			return slices.DeleteFunc(strings.Split(s, " "), func(s string) bool { return s == "" })
		}
		d, err := model.ParseDNS(split(servers), split(searches), split(options), domain)
		if err != nil {
			var bad *model.DNSError
			if !errors.As(err, &bad) || bad.Remedy == "" {
				t.Errorf("error is %#v", err)
			}
			return
		}
		text, err := json.Marshal(d)
		var again model.DNS
		if err != nil || json.Unmarshal(text, &again) != nil || !again.Equal(d) || again.Validate() != nil {
			t.Errorf("%s is read again as %s: %v, %v", d, again, err, again.Validate())
		}
		usable, dropped := d.Usable()
		if len(usable.Servers) > model.MaxDNSServers || len(usable.Searches) > model.MaxDNSSearches || (dropped == "") != usable.Equal(d) {
			t.Errorf("%s is used as %s: %q", d, usable, dropped)
		}
		for _, s := range slices.Concat(usable.ServerTexts(), usable.Searches, usable.Options, []string{usable.Domain}) {
			if strings.ContainsAny(s, ", \x00%") {
				t.Errorf("accepted %q", s)
			}
		}
	})
}
