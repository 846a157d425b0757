// SPDX-License-Identifier: Apache-2.0

package doctor

import "fmt"

// Builds of Windows Server that matter.
const (
	server2019 = 17763
	server2022 = 20348
	server2025 = 26100
)

// buildFindings judges a build of Windows and the revision of its updates. What
// is known of updates is dated 2026-11.
func buildFindings(build, revision uint32) []Finding {
	what := fmt.Sprintf("build %d.%d", build, revision)
	if build < server2019 {
		return []Finding{{"Windows", Bad, what, "before Windows Server 2019 there is no Host Compute Network service as Isthmus needs it", "install Windows Server 2022 or newer"}}
	}
	found := []Finding{{Check: "Windows", Severity: Good, What: what}}
	add := func(severity Severity, text, why, remedy string) {
		found = append(found, Finding{"update", severity, text, why, remedy})
	}
	switch {
	case build < server2022:
		add(Warning, what+" has no HNS 13", "peers of policies are written into every list of rules, whose change resets live TCP connections", "use Windows Server 2022 or newer")
		if revision < 379 {
			add(Bad, what+" is older than KB4489899", "overlay networks need it", "install current updates")
		}
	case build == server2022 && revision == 2582:
		add(Warning, what+" is KB5040437", "users report that networks of containers broke with it (microsoft/Windows-Containers #516)", "install a later update")
	case build == server2025:
		add(Warning, what+": check whether KB5082063 or a later update is installed",
			"before it, rules on endpoints of NAT networks were not enforced (microsoft/Windows-Containers #616); whether others were is not known", "install current updates")
	}
	return found
}
