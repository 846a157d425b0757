// SPDX-License-Identifier: Apache-2.0

package doctor

import "fmt"

// Builds of Windows Server that matter.
const (
	server2019 = 17763
	server2022 = 20348
	server2025 = 26100
)

// buildFindings evaluates a build of Windows and the revision of its updates. The facts
// about updates are of 2026-11.
func buildFindings(build, revision uint32) []Finding {
	what := fmt.Sprintf("build %d.%d", build, revision)
	if build < server2019 {
		return []Finding{{"Windows", Bad, what, "Windows versions before Windows Server 2019 lack the Host Compute Network service that Isthmus needs", "install Windows Server 2022 or newer"}}
	}
	found := []Finding{{Check: "Windows", Severity: Good, What: what}}
	add := func(severity Severity, text, why, remedy string) {
		found = append(found, Finding{"update", severity, text, why, remedy})
	}
	switch {
	case build < server2022:
		add(Warning, what+" has no HNS 13", "ACLs then list the addresses of policy peers, and every change of an ACL list resets live TCP connections", "use Windows Server 2022 or newer")
		if revision < 379 {
			add(Bad, what+" is older than KB4489899", "overlay networks need this update", "install current updates")
		}
	case build == server2022 && revision == 2582:
		add(Warning, what+" is KB5040437", "users report that it broke container networks (microsoft/Windows-Containers #516)", "install a later update")
	case build == server2025:
		add(Warning, what+": check whether KB5082063 or a later update is installed",
			"without it, Windows did not enforce rules on endpoints of NAT networks (microsoft/Windows-Containers #616); other networks may be affected", "install current updates")
	}
	return found
}
