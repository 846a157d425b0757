// SPDX-License-Identifier: Apache-2.0

package quickstart

import (
	"fmt"
	"regexp"
	"strings"
)

// command is a line of a console block that begins with "$ ", and the lines below it.
type command struct {
	line int
	text string
	want []string
}

// commands returns the commands of all console blocks of a Markdown document, in order.
func commands(document string) ([]command, error) {
	var all []command
	console := false
	for i, line := range strings.Split(document, "\n") {
		switch {
		case !console && line == "```console":
			console = true
		case !console:
		case line == "```":
			console = false
		case strings.HasPrefix(line, "$ "):
			all = append(all, command{line: i + 1, text: line[2:]})
		case len(all) == 0:
			return nil, fmt.Errorf("line %d: output without a command", i+1)
		default:
			c := &all[len(all)-1]
			c.want = append(c.want, line)
		}
	}
	if console {
		return nil, fmt.Errorf("the last console block has no end")
	}
	return all, nil
}

var spaces = regexp.MustCompile(`\s+`)

// matches reports whether output is as a document shows it: "..." stands for any text, alone on a
// line for any number of lines, and the width of columns does not count.
func matches(want []string, output string) bool {
	var pattern strings.Builder
	pattern.WriteString(`^`)
	for _, line := range want {
		if line == "..." {
			pattern.WriteString(`(.*\n)*?`)
			continue
		}
		line = spaces.ReplaceAllString(strings.TrimSpace(line), " ")
		parts := strings.Split(line, "...")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern.WriteString(strings.Join(parts, `.*`) + `\n`)
	}
	pattern.WriteString(`$`)
	var lines strings.Builder
	for line := range strings.Lines(output) {
		lines.WriteString(spaces.ReplaceAllString(strings.TrimSpace(line), " ") + "\n")
	}
	return regexp.MustCompile(pattern.String()).MatchString(lines.String())
}
