// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
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

// podsOfWorkloads replaces workloads by one of their pods. Ends of one workload are two of its pods, since a pod always
// reaches itself.
func (o *explainOptions) podsOfWorkloads(s *model.Snapshot) (notes []string, err error) {
	from, fromNote, err := o.Pod(s, o.from, o.namespace, "")
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	to, toNote, err := o.Pod(s, o.to, o.namespace, "")
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	fromPod, _, _ := strings.Cut(from, "@")
	toPod, _, _ := strings.Cut(to, "@")
	switch {
	case fromPod != toPod:
	case toNote != "":
		to, toNote, err = o.Pod(s, o.to, o.namespace, fromPod)
	case fromNote != "":
		from, fromNote, err = o.Pod(s, o.from, o.namespace, toPod)
	}
	o.from, o.to = from, to
	return slices.DeleteFunc([]string{fromNote, toNote}, func(note string) bool { return note == "" }), err
}

// givenProtocol returns the protocol of --protocol, or nil if the flag is not given.
func givenProtocol(c *cobra.Command, text string) (*model.Protocol, error) {
	if !c.Flags().Changed("protocol") {
		return nil, nil
	}
	p, err := model.ParseProtocol(text)
	if err != nil {
		return nil, cli.Usagef("--protocol: %w", err)
	}
	return &p, nil
}

// explainService answers for every backend of a Service.
func (e env) explainService(o *explainOptions, s *model.Snapshot, all *service.Services, to service.Call,
	protocol *model.Protocol, versions []hns.Version) error {
	x, err := o.askService(s, all, to, protocol, versions)
	if err != nil {
		return err
	}
	if o.output == "json" || o.output == "yaml" {
		err = cli.EncodeKind(e.Stdout, o.output, "ServiceExplanation", x)
	} else {
		err = writeService(e.Stdout, x, o.output == "wide")
	}
	switch {
	case err != nil:
		return err
	case len(x.Missing) > 0:
		return fmt.Errorf("--to %s: the answer covers only ports with backends: %s", o.to, strings.Join(x.Missing, "; "))
	case x.Verdict == model.Deny.String():
		return cli.ErrNo
	}
	return nil
}

// askService explains a call from the first address of the client that fits. A client with addresses of both families may call a Service
// by its name over the other one; a note says if the verdict differs there.
func (o *explainOptions) askService(s *model.Snapshot, all *service.Services, to service.Call, protocol *model.Protocol,
	versions []hns.Version) (*explain.ServiceReport, error) {
	from, err := ends.InUse(s, o.from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	x, family, err := o.askFrom(s, all, to, from, protocol, versions)
	if err != nil || to.To.IsValid() {
		return x, err
	}
	others := slices.DeleteFunc(slices.Clone(from), func(a netip.Addr) bool { return a.Is4() == family.Is4() })
	if len(others) == 0 {
		return x, nil
	}
	other, _, err := o.askFrom(s, all, to, others, protocol, nil)
	if err == nil && other.Verdict != x.Verdict { // the Service may not have the family
		x.Notes = append(x.Notes, fmt.Sprintf("from %s the verdict is %s, %d of %d backends denied: --from %s explains it",
			others[0], other.Verdict, other.Denied, len(other.Backends), cluster.EndAt(o.from, others[0])))
	}
	return x, nil
}

// askFrom explains a call by a client with these addresses, and returns the one that it uses.
func (o *explainOptions) askFrom(s *model.Snapshot, all *service.Services, to service.Call, from []netip.Addr, protocol *model.Protocol,
	versions []hns.Version) (x *explain.ServiceReport, used netip.Addr, err error) {
	ports, err := cluster.Ports(to.Service, o.port, protocol)
	if err != nil {
		return nil, used, err
	}
	x = explain.NewServiceReport(to.Service)
	x.Via = o.via
	var missing []error
	for _, port := range ports {
		found, err := all.Connections(to, port, from)
		if err != nil {
			missing = append(missing, err)
		}
		for _, c := range found {
			one := explain.Forwarded(s, c.Egress, c.Ingress, o.Services, func(f model.Flow) explain.Enforced { return enforcedBy(s, f, versions) })
			markDropped(one, c)
			used = c.Egress.Src
			one.Locate(o.Places)
			x.Add(port, one)
		}
	}
	if len(x.Backends) == 0 && len(missing) > 0 {
		return nil, used, fmt.Errorf("--to %s: %w", o.to, missing[0])
	}
	for _, err := range missing {
		x.Missing = append(x.Missing, err.Error())
	}
	return x, used, nil
}

// platformLinux is the data path of Linux nodes in the line "enforced".
const platformLinux = "eBPF"

// markDropped replaces the enforcement of Linux nodes where they drop SCTP that a node translates.
func markDropped(x *explain.Report, c service.Connection) {
	for i := range x.Sides {
		side, why := &x.Sides[i], ""
		switch {
		case side.Decision.Verdict != model.Allow.String():
		case side.Direction == model.Ingress.String() && c.DropsRequests:
			why = "Linux nodes drop SCTP of clients that they masquerade: externalTrafficPolicy: Local keeps the address of the client"
		case side.Direction == model.Egress.String() && c.DropsAnswers:
			why = "Linux nodes drop answers by SCTP if the backend is on the node of the client, or if the client calls a port of its node: " +
				"they cannot look up SCTP that a node translates; call the pods, as by a headless Service"
		}
		for k := range side.Enforced {
			if e := &side.Enforced[k]; why != "" && e.Platform == platformLinux {
				*e = explain.Enforcement{Platform: e.Platform, Verdict: model.Deny.String(), Reasons: append(e.Reasons, why)}
			}
		}
	}
}

// portOfNode explains a flow to a port of a node's own address that leads to a Service or to a pod, and reports whether it does.
func (e env) portOfNode(o *explainOptions, s *model.Snapshot, all *service.Services, versions []hns.Version) (bool, error) {
	protocol, err := model.ParseProtocol(o.protocol)
	if err != nil {
		return false, nil // explaining the flow finds it, too
	}
	at, from, ok := cluster.OfNode(s, o.from, o.to, protocol, o.port)
	if !ok {
		return false, nil
	}
	o.via = fmt.Sprintf("node %s %s %d", strings.TrimPrefix(o.to, "node:"), protocol, at.Port())
	if to, of := all.AtNode(at.Addr(), protocol, at.Port()); to.Service != nil {
		o.port = strconv.Itoa(int(of.Port))
		return true, e.explainService(o, s, all, to, &protocol, versions)
	}
	c, ok := all.HostPort(at, protocol, from)
	if !ok {
		return false, nil
	}
	x := explain.Forwarded(s, c.Egress, c.Ingress, o.Services, func(f model.Flow) explain.Enforced { return enforcedBy(s, f, versions) })
	x.Via = o.via
	x.Locate(o.Places)
	return true, e.writeAnswer(o, x)
}

// maxBackends is the number of backends that text explains in full; of more it explains the first of each
// verdict.
const maxBackends = 3

// writeService prints a report about a Service as text.
func writeService(out io.Writer, x *explain.ServiceReport, wide bool) error {
	var b strings.Builder
	at := strings.Join(x.Addresses, ", ")
	switch {
	case x.Headless:
		at = "headless"
	case at == "":
		at = "no address yet"
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
	for _, n := range x.Notes {
		b.WriteByte('\n')
		wrapped(&b, "note: ", n, 6)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
