// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// serviceMatrix holds which groups reach which backends of Services.
type serviceMatrix struct {
	services  *service.Services
	partition *reach.Partition
	reference *policy.Evaluator
	rows      []*reach.Group
	routes    []*service.Route
}

// matrixOfServices writes a matrix whose columns are ports of Services.
func (e env) matrixOfServices(o *matrixOptions, s *model.Snapshot, m *matrix, protocolGiven bool) error {
	x := &serviceMatrix{services: service.New(s, o.Services, o.EndpointSlices), partition: m.partition, reference: policy.NewEvaluator(s), rows: m.rows}
	var protocol *model.Protocol
	if protocolGiven {
		p, err := model.ParseProtocol(o.protocol)
		if err != nil {
			return cli.Usagef("--protocol: %w", err)
		}
		protocol = &p
	}
	chosen, err := o.chooseServices(x.services, protocol)
	if err != nil {
		return err
	}
	for _, one := range chosen {
		ports, err := cluster.Ports(one, o.port, protocol)
		if err != nil && len(o.toServices) > 0 {
			return err
		}
		for _, port := range ports {
			x.routes = append(x.routes, x.services.Route(one, port, o.v6))
		}
	}
	switch {
	case len(x.rows) == 0:
		return o.nothing(m.partition)
	case len(x.routes) == 0:
		return errors.New("there are no such ports of Services to show: check --to, --port, --protocol and the namespaces")
	}
	if err := o.bound(len(x.rows), len(x.routes)); err != nil {
		return err
	}
	out := bufio.NewWriterSize(e.Stdout, 1<<16)
	switch o.output {
	case "csv":
		err = x.writeCSV(out)
	case "html":
		err = x.writeHTML(out, fmt.Sprintf("Source: %s. isthmusctl %s.", o.Name(), cli.OrNone(e.Version)))
	case "json", "yaml":
		err = x.writeJSON(out, o.output)
	default:
		err = x.writeText(out, o.output == "wide")
	}
	return errors.Join(err, out.Flush())
}

// chooseServices lists the Services of the columns, sorted.
func (o *matrixOptions) chooseServices(all *service.Services, protocol *model.Protocol) ([]*model.Service, error) {
	var chosen []*model.Service
	for _, text := range o.toServices {
		found, err := o.servicesBy(all, text, protocol)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			if !slices.Contains(chosen, s) {
				chosen = append(chosen, s)
			}
		}
	}
	if len(o.toServices) > 0 {
		return chosen, nil
	}
	namespaces := slices.Concat(o.tos, o.namespaces)
	for _, s := range o.Services {
		if s.ExternalName == "" && (len(namespaces) == 0 || slices.Contains(namespaces, s.Namespace)) {
			chosen = append(chosen, s)
		}
	}
	slices.SortFunc(chosen, func(a, b *model.Service) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return chosen, nil
}

// servicesBy reads svc/NAMESPACE/NAME, svc/NAME in the only namespace of --namespace, or an address. Services may share an
// address: then those that have the port of --port count.
func (o *matrixOptions) servicesBy(all *service.Services, text string, protocol *model.Protocol) ([]*model.Service, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		found := all.At(a.Unmap())
		if len(found) == 0 {
			return nil, fmt.Errorf("--to %s: no known Service has this address", text)
		}
		having := slices.DeleteFunc(slices.Clone(found), func(s *model.Service) bool {
			_, err := service.Port(s, o.port, protocol)
			return err != nil
		})
		if len(having) > 0 {
			return having, nil
		}
		return found, nil
	}
	kind, rest, _ := strings.Cut(text, "/")
	if !cluster.IsServiceKind(kind) || rest == "" {
		return nil, cli.Usagef("--to %q: give svc/NAMESPACE/NAME or an address of a Service; --to-namespace selects pods", text)
	}
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		if len(o.namespaces) != 1 {
			return nil, cli.Usagef("--to %q: give svc/NAMESPACE/%s, or one namespace with --namespace", text, rest)
		}
		namespace, name = o.namespaces[0], rest
	}
	s, err := cluster.NamedService(all, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	return []*model.Service{s}, nil
}

// each computes the rows in order.
func (m *serviceMatrix) each(row func(i int, allowed [][]bool) error) error {
	return m.services.Reach(m.partition, m.rows, m.routes, row)
}

// count returns how many backends a cell allows.
func count(allowed []bool) (n int) {
	for _, ok := range allowed {
		if ok {
			n++
		}
	}
	return n
}

// sign is a cell in a few characters.
func (m *serviceMatrix) sign(allowed []bool) string {
	switch n := count(allowed); {
	case len(allowed) == 0:
		return "-"
	case n == len(allowed):
		return "x"
	case n == 0:
		return "."
	default:
		return fmt.Sprintf("%d/%d", n, len(allowed))
	}
}

// why names the policy that denies a source a backend.
func (m *serviceMatrix) why(from *reach.Group, r *service.Route, to service.Target) string {
	f := model.Flow{Src: m.partition.Client(from, to.Addr), Dst: to.Addr, Protocol: r.Port.Protocol, Port: to.Port}
	egress, ingress := m.reference.Flow(f)
	if egress.Verdict == model.Deny {
		return "egress: " + egress.Cause.String()
	}
	return "ingress: " + ingress.Cause.String()
}
