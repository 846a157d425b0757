// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// Finding is one line of a file that deserves attention. Level is "error", "warning" or
// "note". File is empty if no file is known; Line counts from 1, and 0 means the whole file.
type Finding struct {
	Level   string
	Rule    string
	Message string
	File    string
	Line    int
}

// Write writes findings as "github" or "sarif". about describes the rules, by name.
func Write(out io.Writer, form, version string, about map[string]string, all []Finding) error {
	if form == "github" {
		return github(out, all)
	}
	return cli.EncodeJSON(out, sarif(version, about, all))
}

// property and message escape as the runner of GitHub Actions decodes.
var (
	message  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// github writes workflow commands, which GitHub shows next to the lines of a pull request.
func github(out io.Writer, all []Finding) error {
	var b strings.Builder
	for _, f := range all {
		command := map[string]string{"note": "notice"}[f.Level]
		if command == "" {
			command = f.Level
		}
		var at []string
		if f.File != "" {
			at = append(at, "file="+property.Replace(filepath.ToSlash(f.File)))
		}
		if f.File != "" && f.Line > 0 {
			at = append(at, fmt.Sprintf("line=%d", f.Line))
		}
		at = append(at, "title="+property.Replace("isthmusctl "+f.Rule))
		fmt.Fprintf(&b, "::%s %s::%s\n", command, strings.Join(at, ","), message.Replace(f.Message))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// The parts of SARIF 2.1.0 that are used.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID    string    `json:"id"`
		Short sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		Rule      string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	}
	sarifRegion struct {
		Start int `json:"startLine"`
	}
)

func sarif(version string, about map[string]string, all []Finding) sarifLog {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "isthmusctl", Version: version, Rules: []sarifRule{}}}, Results: []sarifResult{}}
	var used []string
	for _, f := range all {
		used = append(used, f.Rule)
		r := sarifResult{Rule: f.Rule, Level: f.Level, Message: sarifText{f.Message}}
		if f.File != "" {
			var at sarifLocation
			at.Physical.Artifact.URI = uri(f.File)
			if f.Line > 0 {
				at.Physical.Region = &sarifRegion{f.Line}
			}
			r.Locations = []sarifLocation{at}
		}
		run.Results = append(run.Results, r)
	}
	slices.Sort(used)
	for _, name := range slices.Compact(used) {
		text := about[name]
		if text == "" {
			text = name
		}
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{name, sarifText{text}})
	}
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}
