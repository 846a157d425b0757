// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/migrate"
)

// checkLayouts finds maps and programs of other versions.
func (c Config) checkLayouts() []Finding {
	const check, dir = "layout of maps", "/sys/fs/bpf/isthmus"
	older, err := migrate.Find(filepath.Join(c.Root, dir), loader.LayoutVersion)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []Finding{{check, Unknown, err.Error(), "the agent does not start if the layout of a newer version exists", "run this as root"}}
	case err != nil:
		return []Finding{{check, Bad, err.Error(), "the agent of this version does not start", "run the named version, or drain the node and remove " + dir}}
	case older != "":
		return []Finding{{check, Warning, fmt.Sprintf("%s/%s is of an older version, whose programs are in force", dir, older),
			"changes of policy reach no pod until they are replaced", "start the agent of this version: it migrates them without interrupting traffic"}}
	}
	return []Finding{{Check: check, Severity: Good, What: "no layout except " + loader.LayoutVersion}}
}
