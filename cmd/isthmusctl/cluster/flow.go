// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/model"
)

// Flow reads a flow as flags name it: its ends as ends.Addresses reads them, its protocol, and its port by number or by a
// name of the destination pod.
func Flow(s *model.Snapshot, fromEnd, toEnd, protocolName, port string) (model.Flow, error) {
	var f model.Flow
	protocol, err := model.ParseProtocol(protocolName)
	if err != nil {
		return f, cli.Usagef("--protocol: %w", err)
	}
	from, err := ends.Addresses(s, fromEnd)
	if err != nil {
		return f, fmt.Errorf("--from: %w", err)
	}
	to, err := ends.Addresses(s, toEnd)
	if err != nil {
		return f, fmt.Errorf("--to: %w", err)
	}
	f.Protocol = protocol
	f.Src, f.Dst, err = ends.SameFamily(from, to, protocol)
	if err != nil {
		return f, fmt.Errorf("%s -> %s: %w", fromEnd, toEnd, err)
	}
	f.Port, err = ends.Port(port, protocol, s.Owners().Pods[f.Dst])
	switch {
	case errors.Is(err, ends.ErrNoPort):
		err = cli.Usagef("--port: %w", err)
	case err != nil:
		err = cli.Usagef("--port %w", err)
	}
	return f, err
}
