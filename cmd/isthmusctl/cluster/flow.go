// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strconv"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/model"
)

// Flow reads a flow as flags name it: its ends as Addresses reads them, its protocol, and its port by number or by a
// name of the destination pod.
func Flow(s *model.Snapshot, fromEnd, toEnd, protocolName, port string) (model.Flow, error) {
	var f model.Flow
	protocol, err := model.ParseProtocol(protocolName)
	if err != nil {
		return f, cli.Usagef("--protocol: %w", err)
	}
	from, err := Addresses(s, fromEnd)
	if err != nil {
		return f, fmt.Errorf("--from: %w", err)
	}
	to, err := Addresses(s, toEnd)
	if err != nil {
		return f, fmt.Errorf("--to: %w", err)
	}
	f.Protocol = protocol
	f.Src, f.Dst, err = SameFamily(from, to, protocol)
	if err != nil {
		return f, fmt.Errorf("%s -> %s: %w", fromEnd, toEnd, err)
	}
	f.Port, err = readPort(port, protocol, s.Owners().Pods[f.Dst])
	return f, err
}

// readPort reads a number, or a port name of the destination.
func readPort(text string, p model.Protocol, to *model.Pod) (uint16, error) {
	if !p.HasPorts() {
		if text != "" {
			return 0, cli.Usagef("--port %q: %s has no ports", text, p)
		}
		return 0, nil
	}
	if text == "" {
		return 0, cli.Usagef("--port: give the destination port")
	}
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > 65535 {
			return 0, cli.Usagef("--port %d: give a number from 1 to 65535", n)
		}
		return uint16(n), nil
	}
	if to == nil {
		return 0, cli.Usagef("--port %q: give a number from 1 to 65535; only pods have named ports", text)
	}
	if found := to.Resolve(text, p); len(found) > 0 {
		return found[0].Port, nil
	}
	return 0, cli.Usagef("--port %q: pod %s has no %s port of that name: give a number from 1 to 65535", text, to.PodID, p)
}
