// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// signature is the meaning of a class: the kind of its addresses, the terms of rules that
// match it, and the meaning of port names on its pods. Port classes use terms only.
type signature struct {
	kind  model.AddressKind
	terms []string // sorted
	names []string // sorted
}

// key is a text that only equal signatures share.
func (s signature) key() string {
	if s.kind == model.KindKnown && len(s.names) == 0 {
		return strings.Join(s.terms, "\n")
	}
	return string(rune('0'+s.kind)) + "\n" + strings.Join(s.names, "\n") + "\n\n" + strings.Join(s.terms, "\n")
}

// project returns the key of the part that is in the common vocabulary.
func (s signature) project(terms, names map[string]bool) string {
	p := signature{kind: s.kind}
	for _, t := range s.terms {
		if terms[t] {
			p.terms = append(p.terms, t)
		}
	}
	for _, n := range s.names {
		name, _, _ := strings.Cut(n, "=")
		if names[name] {
			p.names = append(p.names, n)
		}
	}
	return p.key()
}

// numbered is a class of the previous State.
type numbered struct {
	number uint32
	signature
}

// none stands for a missing number.
const none = math.MaxUint32

// words are the terms and port names of rules: only by these can rules distinguish classes.
type words struct {
	terms []string
	names []string
}

// inherit finds for each class the number of a previous class with the same meaning, as far
// as both sets of rules can express it. So rows that stay remain correct under that number.
// If a class was split, the part with the largest overlap keeps the number. If classes were
// joined, the number of the largest is kept. overlaps counts the members of found[i] by
// their previous class.
func inherit(found []signature, now words, previous []numbered, before words, overlaps func(i int) map[uint32]int) []uint32 {
	terms := intersect(now.terms, before.terms)
	names := intersect(now.names, before.names)
	old := make(map[string][]uint32)
	for _, p := range previous {
		key := p.project(terms, names)
		old[key] = append(old[key], p.number)
	}
	heirs := make(map[string][]int)
	for i, s := range found {
		key := s.project(terms, names)
		heirs[key] = append(heirs[key], i)
	}
	numbers := make([]uint32, len(found))
	for i := range numbers {
		numbers[i] = none
	}
	for key, candidates := range heirs {
		slices.Sort(old[key])
		matchNumbers(numbers, candidates, old[key], overlaps)
	}
	return numbers
}

// matchNumbers matches classes of one meaning with the numbers of that meaning.
func matchNumbers(numbers []uint32, candidates []int, old []uint32, overlaps func(int) map[uint32]int) {
	if len(candidates) == 1 && len(old) == 1 {
		numbers[candidates[0]] = old[0]
		return
	}
	if len(old) == 0 {
		return
	}
	type pair struct {
		class  int
		number uint32
		weight int
	}
	var pairs []pair
	for _, i := range candidates {
		for n, weight := range overlaps(i) {
			if _, ok := slices.BinarySearch(old, n); ok {
				pairs = append(pairs, pair{i, n, weight})
			}
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.number, b.number), cmp.Compare(a.class, b.class))
	})
	used := make(map[uint32]bool)
	for _, p := range pairs {
		if numbers[p.class] == none && !used[p.number] {
			numbers[p.class] = p.number
			used[p.number] = true
		}
	}
}

func intersect(a, b []string) map[string]bool {
	both := make(map[string]bool)
	for _, w := range a {
		if _, ok := slices.BinarySearch(b, w); ok {
			both[w] = true
		}
	}
	return both
}
