// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// pattern matches names by patterns with *.
func (c *compiler) pattern(field string, texts []string, translate func(string) (string, error), get func(*flow.Flow) []string) {
	if len(texts) == 0 {
		return
	}
	var all []string
	for _, t := range texts {
		p, err := translate(t)
		if err != nil {
			c.fail("%s %q: %w", field, t, err)
			return
		}
		all = append(all, p)
	}
	re, err := regexp.Compile(`\A(?:` + strings.Join(all, "|") + `)\z`)
	if err != nil {
		c.fail("%s: %w", field, err)
		return
	}
	c.any(len(texts), func(x *flow.Flow) bool { return slices.ContainsFunc(get(x), re.MatchString) })
}

// namePattern makes a regular expression of a domain name with *.
func namePattern(p string) (string, error) {
	p = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(p), "."))
	if p == "" || strings.HasSuffix(p, ".") {
		return "", errors.New("give a domain name; * stands for any part of it")
	}
	var b strings.Builder
	for _, r := range p {
		switch {
		case r == '.':
			b.WriteString(`\.`)
		case r == '*':
			b.WriteString(`[-.0-9a-z]*`)
		case r == '-', r == '_', r >= '0' && r <= '9', r >= 'a' && r <= 'z':
			b.WriteRune(r)
		default:
			return "", fmt.Errorf("%q is not allowed in a domain name", r)
		}
	}
	return b.String(), nil
}

// anyName is the pattern of all names.
const anyName = `(?:[-0-9_a-z]+(?:\.[-0-9_a-z]+)*)`

// nodePattern makes a regular expression of "node", "cluster/node" or "cluster/", each with *.
func nodePattern(p string) (string, error) {
	cluster, node, ok := strings.Cut(p, "/")
	if !ok {
		cluster, node = "", p
	}
	if p == "" || strings.Contains(node, "/") {
		return "", errors.New("give NODE, CLUSTER/NODE or CLUSTER/")
	}
	parts := [2]string{cluster, node}
	for i, part := range parts {
		if part == "" {
			parts[i] = anyName
			continue
		}
		t, err := namePattern(part)
		if err != nil {
			return "", err
		}
		parts[i] = t
	}
	return parts[0] + "/" + parts[1], nil
}

// absolute returns the name of a node with its cluster.
func absolute(node string) string {
	if node == "" || strings.Contains(node, "/") {
		return node
	}
	return Cluster + "/" + node
}
