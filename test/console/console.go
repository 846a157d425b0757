// SPDX-License-Identifier: Apache-2.0

// Package console reads the console blocks of a Markdown document, so that a test can run their commands and compare what
// they print. A line that begins with "$ " is a command; the lines below it are its output.
//
// It runs nothing.
package console

import (
	"fmt"
	"regexp"
	"strings"
)

// Command is one command of a document.
type Command struct {
	// Line is its number in the document.
	Line int
	Text string
	// Want is the output, by line; see Matches.
	Want []string
}

// Commands returns the commands of all console blocks of a document, in order.
func Commands(document string) ([]Command, error) {
	var all []Command
	console := false
	for i, line := range strings.Split(document, "\n") {
		switch {
		case !console && line == "```console":
			console = true
		case !console:
		case line == "```":
			console = false
		case strings.HasPrefix(line, "$ "):
			all = append(all, Command{Line: i + 1, Text: line[2:]})
		case len(all) == 0:
			return nil, fmt.Errorf("line %d: output without a command", i+1)
		default:
			c := &all[len(all)-1]
			c.Want = append(c.Want, line)
		}
	}
	if console {
		return nil, fmt.Errorf("the last console block has no end")
	}
	return all, nil
}

var spaces = regexp.MustCompile(`\s+`)

// Matches reports whether output is as a document shows it: "..." stands for any text, alone on a
// line for any number of lines, and the width of columns does not count.
func Matches(want []string, output string) bool {
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
