// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// qualify completes the names of pods with the namespace of --namespace.
func (o *explainOptions) qualify() error {
	for _, f := range []struct {
		flag string
		end  *string
	}{{"--from", &o.from}, {"--to", &o.to}} {
		end := f.end
		_, notAddress := netip.ParseAddr(*end)
		if notAddress == nil || strings.ContainsAny(*end, "/:") {
			continue
		}
		if o.namespace == "" {
			return cli.Usagef("%s %q: give namespace/pod or an IP address, or the namespace with --namespace", f.flag, *end)
		}
		*end = o.namespace + "/" + *end
	}
	return nil
}

// podsOfWorkloads replaces workloads by one of their pods.
func (o *explainOptions) podsOfWorkloads(s *model.Snapshot) (notes []string, err error) {
	for _, end := range []struct {
		flag string
		text *string
	}{{"--from", &o.from}, {"--to", &o.to}} {
		pod, note, err := o.Pod(s, *end.text, o.namespace)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", end.flag, err)
		}
		if *end.text = pod; note != "" {
			notes = append(notes, note)
		}
	}
	return notes, nil
}

// explainService answers for every backend of a Service.
func (e env) explainService(c *cobra.Command, o *explainOptions, s *model.Snapshot, all *service.Services, to *model.Service,
	family netip.Addr, versions []hns.Version) error {
	x, err := o.askService(c.Flags().Changed("protocol") || o.via != "", s, all, to, family, versions)
	if err != nil {
		return err
	}
	if o.output == "json" || o.output == "yaml" {
		err = cli.EncodeKind(e.Stdout, o.output, "ServiceExplanation", x)
	} else {
		err = writeService(e.Stdout, x, o.output == "wide")
	}
	if err == nil && x.Verdict == model.Deny.String() {
		return cli.ErrNo
	}
	return err
}

func (o *explainOptions) askService(protocolGiven bool, s *model.Snapshot, all *service.Services, to *model.Service,
	family netip.Addr, versions []hns.Version) (*explain.ServiceReport, error) {
	from, err := ends.Addresses(s, o.from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	var protocol *model.Protocol
	if protocolGiven {
		p, err := model.ParseProtocol(o.protocol)
		if err != nil {
			return nil, cli.Usagef("--protocol: %w", err)
		}
		protocol = &p
	}
	ports, err := cluster.Ports(to, o.port, protocol)
	if err != nil {
		return nil, err
	}
	x := explain.NewServiceReport(to)
	x.Via = o.via
	for _, port := range ports {
		backends, err := all.Backends(to, port)
		if err != nil {
			return nil, fmt.Errorf("--to: %w", err)
		}
		if o.via != "" {
			backends = all.ByNode(to, family, from[0], backends)
		} else if backends = all.ByClient(to, family, from[0], backends); len(backends) == 0 {
			return nil, fmt.Errorf("--to: no backend of Service %s for %s: internalTrafficPolicy is Local, and none is on the node of the client", x.Service, o.to)
		}
		for _, b := range backends {
			f := model.Flow{Protocol: port.Protocol, Port: b.Port}
			same := cluster.SameAs(family, b.Addresses)
			if len(same) == 0 {
				continue // the nodes forward within a family
			}
			if f.Src, f.Dst, err = ends.SameFamily(cluster.SameAs(family, from), same, port.Protocol); err != nil {
				return nil, fmt.Errorf("%s -> %s: %w", o.from, b.Name, err)
			}
			x.Add(port, o.ask(s, f, versions))
		}
	}
	if len(x.Backends) == 0 {
		return nil, fmt.Errorf("--to: no backend of Service %s for %s: %s", x.Service, o.to, noBackend(to, family, o.via))
	}
	return x, nil
}

// noBackend is the reason why none of the backends of a Service gets a connection to an address.
func noBackend(to *model.Service, family netip.Addr, via string) string {
	if via != "" && to.KeepsClients {
		return "externalTrafficPolicy is Local, and none is on this node"
	}
	if family.Is6() {
		return "none has an IPv6 address"
	}
	return "none has an IPv4 address"
}

// nodePort returns the Service to which a node forwards the destination, if that is a port of a node, and the address of
// the node. It replaces the port by that of the Service.
func (o *explainOptions) nodePort(s *model.Snapshot, all *service.Services) (*model.Service, netip.Addr) {
	protocol, wrong := model.ParseProtocol(o.protocol)
	port, notNumber := strconv.ParseUint(o.port, 10, 16)
	if wrong != nil || notNumber != nil || strings.Contains(strings.TrimPrefix(o.to, "node:"), "/") {
		return nil, netip.Addr{}
	}
	at, err := ends.Addresses(s, o.to)
	if err != nil {
		return nil, netip.Addr{} // explaining the flow finds it, too
	}
	to, of := all.AtNode(at[0], protocol, uint16(port))
	if to == nil {
		return nil, netip.Addr{}
	}
	o.via = fmt.Sprintf("node %s %s %d", strings.TrimPrefix(o.to, "node:"), protocol, port)
	o.port = strconv.Itoa(int(of.Port))
	return to, at[0]
}

// maxBackends is the number of backends that text explains in full; of more it explains the first of each
// verdict.
const maxBackends = 3

// writeService prints a report about a Service as text.
func writeService(out io.Writer, x *explain.ServiceReport, wide bool) error {
	var b strings.Builder
	at := "headless"
	if len(x.Addresses) > 0 {
		at = strings.Join(x.Addresses, ", ")
	}
	via := ""
	if x.Via != "" {
		via = x.Via + " of "
	}
	fmt.Fprintf(&b, "%s -> %sService %s (%s): %s, %d of %d backends denied\n", x.From, via, x.Service, at, x.Verdict, x.Denied, len(x.Backends))
	for _, one := range x.Backends {
		fmt.Fprintf(&b, "  %-5s  %s %s %d, by port %s\n", one.Verdict, one.To, one.Protocol, one.Port, one.ServicePort)
	}
	shown := make(map[string]bool)
	for _, one := range x.Backends {
		if !wide && len(x.Backends) > maxBackends && shown[one.Verdict] {
			continue
		}
		shown[one.Verdict] = true
		b.WriteByte('\n')
		if err := writeExplanation(&b, one.Report, wide); err != nil {
			return err
		}
	}
	if !wide && len(x.Backends) > maxBackends {
		b.WriteString("\n(-o wide explains every backend)\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
