// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
)

// FuzzCase reads any text as a case, and calls compare.
func FuzzCase(f *testing.F) {
	texts, fallback := caseTexts(f)
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) <= 1<<16 {
			compare(t, text, fallback)
		}
	})
}

// FuzzEditedCase replaces words of a case by words of other cases, so that most results are valid,
// and calls compare. Three bytes are an edit: two select the word, one its replacement.
func FuzzEditedCase(f *testing.F) {
	texts, fallback := caseTexts(f)
	for which := range 40 {
		f.Add(uint16(which*7), []byte{byte(which), 3, 5, byte(which * 5), 9, byte(which * 11), 1, byte(which * 3), 17})
	}
	f.Fuzz(func(t *testing.T, which uint16, edits []byte) {
		if len(edits) <= 60 {
			compare(t, edited(texts[int(which)%len(texts)], edits), fallback)
		}
	})
}

// vocabulary holds replacements in addition to the words of the same case.
var vocabulary = strings.Fields(`In NotIn Exists DoesNotExist Ingress Egress Accept Deny Pass Admin Baseline Allow
	TCP UDP SCTP 0 1 80 81 443 65535 1000 http dns web x w z a b c app tier team red blue front true false
	10.0.0.0/8 10.0.1.0/24 10.0.1.11/32 0.0.0.0/0 ::/0 fd00::/16 192.168.0.1/32 10.0.2.0/23 namespaces pods nodes
	networks ingress egress from to ports protocols port endPort namespaceSelector podSelector matchLabels ipBlock except`)

var word = regexp.MustCompile(`[A-Za-z0-9./]+(:[0-9a-f:/]+)?`)

func edited(text []byte, edits []byte) []byte {
	head, _, _ := strings.Cut(string(text), "-- "+GoldenTables+" --")
	places := word.FindAllStringIndex(head, -1)
	words := make([]string, len(places))
	for i, p := range places {
		words[i] = head[p[0]:p[1]]
	}
	for ; len(edits) >= 3 && len(words) > 0; edits = edits[3:] {
		at, to := (int(edits[0])<<8|int(edits[1]))%len(words), int(edits[2])
		if to < len(vocabulary) {
			words[at] = vocabulary[to]
		} else {
			words[at] = words[to*31%len(words)]
		}
	}
	var out strings.Builder
	end := 0
	for i, p := range places {
		out.WriteString(head[end:p[0]])
		out.WriteString(words[i])
		end = p[1]
	}
	out.WriteString(head[end:])
	return []byte(out.String())
}

// caseTexts reads the cases, and the default cluster.
func caseTexts(f *testing.F) (texts [][]byte, fallback []byte) {
	f.Helper()
	paths, err := filepath.Glob("*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range append(paths, "default.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		texts = append(texts, text)
	}
	last := len(texts) - 1
	return texts[:last], texts[last]
}

// compare reads a case and compiles each step. All engines must give the same verdicts on its
// flows, whatever verdicts the case expects.
func compare(t *testing.T, text, fallback []byte) {
	t.Helper()
	c, err := parse("fuzz", txtar.Parse(text), fallback)
	if err != nil {
		if err.Error() == "" {
			t.Error("an error without a text")
		}
		return
	}
	all := PureEngines()
	var cluster *engine.Cluster
	for _, step := range c.Steps {
		cluster = engine.Compile(step.Snapshot, cluster)
		if len(cluster.Unsupported) > 0 {
			return // over-blocked and reported
		}
		for _, e := range all {
			if err := e.Load(cluster); err != nil {
				t.Fatalf("%s: %v", e.Name(), err)
			}
		}
		for _, flow := range step.Flows {
			agree(t, all, cluster, flow)
		}
	}
}

// agree compares the engines' verdicts on a flow.
func agree(t *testing.T, all []engine.Engine, cluster *engine.Cluster, f Flow) {
	t.Helper()
	want, err := cluster.Decide(all[0], f.Flow)
	if err != nil {
		t.Fatalf("%s: %v", f.Text, err)
	}
	for _, e := range all[1:] {
		got, err := cluster.Decide(e, f.Flow)
		if errors.Is(err, engine.ErrImpossible) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", f.Text, err)
		}
		if got != want {
			t.Errorf("%s: %s says %s, %s says %s", f.Text, all[0].Name(), want, e.Name(), got)
		}
	}
}
