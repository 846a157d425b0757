// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

func FuzzReadObjects(f *testing.F) {
	s := model.MakeSnapshot([]*model.Namespace{{Name: "shop"}}, []*model.Node{{Name: "n1"}},
		[]*model.Pod{{PodID: model.PodID{Namespace: "shop", Name: "web"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		[]*model.Policy{{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}}})
	var b bytes.Buffer
	if err := WriteObjects(&b, s); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	for _, text := range []string{"", "{}", "null", `{"Pod":null}`, `{"Policy":{"Tier":9}}`, `{"Policy":{"Rules":[[{"Action":99}],[]]}}`, "[", strings.Repeat(" ", 2000)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := ReadObjects(bytes.NewReader(raw), 1000)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if len(raw) > 1000 {
			t.Fatalf("%d bytes are accepted", len(raw))
		}
		if err := WriteObjects(&out, s); err != nil {
			t.Fatal(err)
		}
		s.Owners()
		s.SortedPolicies()
	})
}

func TestReadObjects(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                           "none of the known kinds",
		`{"Pod":1}`:                    "read objects: ",
		`{"Policy":{"Tier":9}}`:        "has tier 9",
		`{"Node":{}}` + "\n{":          "read objects: unexpected EOF",
		strings.Repeat(" ", 101):       "more than 100 bytes",
		`{"Node":{"Name":"n"}}` + "\n": "",
	} {
		_, err := ReadObjects(strings.NewReader(text), 100)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
