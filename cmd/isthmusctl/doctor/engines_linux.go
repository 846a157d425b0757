// SPDX-License-Identifier: Apache-2.0

package doctor

import "github.com/isthmus-net/isthmus/linux/engines"

// checkEngines finds policy engines of other projects.
func (c Config) checkEngines() []Finding {
	const check = "policy engine"
	all, err := engines.Detect(c.Root)
	if err != nil {
		return []Finding{{check, Unknown, err.Error(), "another engine may enforce policy too", "run this as root"}}
	}
	var found []Finding
	for _, e := range all {
		found = append(found, Finding{check, Bad, e.String(), "two engines deny what either denies, so the agent does not begin to enforce policy beside it", e.Remedy})
	}
	if len(found) == 0 {
		found = []Finding{{Check: check, Severity: Good, What: "none of another project"}}
	}
	return found
}
