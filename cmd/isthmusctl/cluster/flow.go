// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/model"
)

// EndAt names one of the addresses of a pod or a node.
func EndAt(end string, a netip.Addr) string {
	if strings.HasPrefix(end, "node:") {
		return a.String()
	}
	pod, _, _ := strings.Cut(end, "@")
	return pod + "@" + a.String()
}

// Flow reads a flow as flags name it: its ends as ends.InUse reads them, its protocol, and its port by number or by a
// name of the destination pod.
func Flow(s *model.Snapshot, fromEnd, toEnd, protocolName, port string) (model.Flow, error) {
	var f model.Flow
	protocol, err := model.ParseProtocol(protocolName)
	if err != nil {
		return f, cli.Usagef("--protocol: %w", err)
	}
	from, err := ends.InUse(s, fromEnd)
	if err != nil {
		return f, fmt.Errorf("--from: %w", err)
	}
	to, err := ends.InUse(s, toEnd)
	if err != nil {
		return f, fmt.Errorf("--to: %w", err)
	}
	f.Protocol = protocol
	f.Src, f.Dst, err = ends.SameFamily(from, to, protocol)
	if err != nil {
		return f, fmt.Errorf("%s -> %s: %w", fromEnd, toEnd, err)
	}
	if err := impossible(f); err != nil {
		return f, err
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

// impossible says why no packet of a flow reaches a node.
func impossible(f model.Flow) error {
	switch {
	case f.Src.IsLoopback():
		return fmt.Errorf("--from %s: packets from loopback addresses leave neither a pod nor a host, so that no policy decides about them", f.Src)
	case f.Dst.IsLoopback():
		return fmt.Errorf("--to %s: packets to loopback addresses leave neither a pod nor a host, so that no policy decides about them", f.Dst)
	case f.Src.IsUnspecified() || f.Src.IsMulticast() || f.Src == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("--from %s: no packet of a connection has this source", f.Src)
	case f.Dst.IsUnspecified():
		return fmt.Errorf("--to %s: no packet has this destination", f.Dst)
	}
	return nil
}
