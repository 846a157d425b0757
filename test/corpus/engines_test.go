// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
)

// PureEngines returns every engine that needs no kernel.
func PureEngines() []engine.Engine {
	return []engine.Engine{&engine.Evaluate{}, &engine.Tables{},
		&engine.PerNode{Title: "maps", Open: func() (engine.Node, error) { return mapsim.New(), nil }},
		&engine.PerNode{Title: "acl", Packets: true, Open: func() (engine.Node, error) { return aclsim.New(), nil }}}
}
