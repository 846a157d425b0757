// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/isthmus-net/isthmus/cni/install"
)

// checkCNIConfigurations finds configurations of other networks.
func (c Config) checkCNIConfigurations() []Finding {
	const check = "cni configuration"
	names, err := install.Confs(filepath.Join(c.Root, c.CNIConfDir))
	if err != nil {
		return []Finding{{check, Unknown, err.Error(), "there may be a configuration of another network",
			"run this as root, or give the directory with --cni-conf-dir"}}
	}
	var first, later []string
	for _, n := range names {
		switch {
		case n < install.ConfName:
			first = append(first, n)
		case n > install.ConfName:
			later = append(later, n)
		}
	}
	var found []Finding
	if len(first) > 0 {
		found = append(found, Finding{check, Bad, fmt.Sprintf("%s in %s", strings.Join(first, ", "), c.CNIConfDir),
			"the runtime uses the first file by name: the other network attaches pods, and no policy is enforced on them",
			"uninstall the other network, or remove the file and delete the pods that it attached"})
	}
	if len(later) > 0 {
		found = append(found, Finding{check, Warning, fmt.Sprintf("%s in %s", strings.Join(later, ", "), c.CNIConfDir),
			"pods that started before Isthmus use the other network, and new pods will too if Isthmus is removed",
			"uninstall the other network, and delete the pods that it attached"})
	}
	if len(found) == 0 {
		found = []Finding{{Check: check, Severity: Good, What: "no configuration of another network in " + c.CNIConfDir}}
	}
	return found
}
