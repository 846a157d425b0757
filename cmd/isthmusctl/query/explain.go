// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	cluster.Source
	from, to  string
	namespace string
	protocol  string
	port      string
	hns       []string
	output    string
	via       string // the port of a node that leads to the destination, for messages
}

func (e env) explainCommand() *cobra.Command {
	o := &explainOptions{Source: cluster.Source{WantServices: true}}
	c := &cobra.Command{
		Use:   "explain --from POD|IP --to POD|svc/SERVICE|IP --port N",
		Short: "Report whether a flow is allowed, which rule decides at each end, and what would change it",
		Long: `Report whether a new connection is allowed, and the tier, policy and rule that decide at each end. Report
whether the node of that end enforces the rule exactly, and which single edits of a policy reverse the verdict.

Ends are namespace/pod, namespace/pod@IP for one of several addresses, node:NAME or an IP address. A workload, such as
deploy/NAME or deploy/NAMESPACE/NAME, stands for its first pod; if that is the other end, for its second. The port is a number,
or a name that the destination pod gives to one of its ports.

For a denied end that NetworkPolicies isolate, the answer has a rule that opens it, as YAML and as a kubectl command.

The destination may also be a Service: svc/NAMESPACE/NAME, svc/NAME in the namespace of -n or of the source, or one of its
addresses. The answer then has a verdict for every backend. The port is one of the Service, by number or name;
without --port the answer covers all. A headless Service translates no port. A port of a node that leads to a Service or, as
a host port, to a pod is followed to there.

Exit status: 0 allowed (by a Service: every backend), 1 denied (any backend), 2 anything else.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error { return o.Complete(e.explain(c, o)) }),
	}
	o.Register(c)
	o.RegisterPlaceholders(c)
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "source of the connection")
	f.StringVar(&o.to, "to", "", "destination of the connection")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of pods and Services that are given without one")
	f.StringVar(&o.protocol, "protocol", "tcp", "tcp, udp, sctp, icmp, icmpv6 or a number")
	f.StringVarP(&o.port, "port", "p", "", "destination port: a number, or a port name of the destination pod")
	f.StringSliceVar(&o.hns, "hns", nil, "versions of HNS to check for Windows nodes (default all supported versions)")
	cli.RegisterOutput(c, &o.output, "text", "wide", "json", "yaml")
	cli.CompleteFlag(c, "protocol", cli.Protocols())
	o.CompleteEnds(c, "from", false)
	o.CompleteEnds(c, "to", true)
	o.CompleteNamespaces(c, "namespace")
	return c
}

func (e env) explain(c *cobra.Command, o *explainOptions) error {
	if err := cli.CheckOutput(o.output, "text", "wide", "json", "yaml"); err != nil {
		return err
	}
	if o.from == "" || o.to == "" {
		return cli.Usagef("explain: give both --from and --to")
	}
	versions, err := parseVersions(o.hns)
	if err != nil {
		return err
	}
	s, err := o.Open(c.Context(), e.Stderr)
	if err != nil {
		return err
	}
	if err := o.qualify(); err != nil {
		return err
	}
	notes, err := o.podsOfWorkloads(s)
	if err != nil {
		return err
	}
	for _, n := range notes {
		e.Remark(o.Quiet(), n)
	}
	services := service.New(s, o.Services, o.EndpointSlices)
	protocol, err := givenProtocol(c, o.protocol)
	if err != nil {
		return err
	}
	to, err := cluster.Service(services, o.from, o.to, o.namespace, o.port, protocol)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	if to.Service != nil {
		return e.explainService(o, s, services, to, protocol, versions)
	}
	if done, err := e.portOfNode(o, s, services, versions); done {
		return err
	}
	flow, err := cluster.Flow(s, o.from, o.to, o.protocol, o.port)
	if err != nil {
		return err
	}
	x := o.ask(s, flow, versions)
	for _, end := range []string{o.from, o.to} {
		namespace, name, _ := strings.Cut(end, "/")
		if pod, ok := s.Pods.Get(model.PodID{Namespace: namespace, Name: name}); ok && pod.HostNetwork {
			x.Notes = append(x.Notes, end+" is on the host network: it has the address of its node, and no policy applies to it")
		}
	}
	if other, ok := ends.OtherFamily(s, o.from, o.to, flow); ok {
		x.NoteOther(other, explain.Flow(s, other, o.Services, nil).Verdict)
	}
	return e.writeAnswer(o, x)
}

// writeAnswer writes an explanation. The error of a denied flow is ErrNo.
func (e env) writeAnswer(o *explainOptions, x *explain.Report) (err error) {
	if o.output == "json" || o.output == "yaml" {
		err = cli.EncodeKind(e.Stdout, o.output, "Explanation", x)
	} else {
		err = writeExplanation(e.Stdout, x, o.output == "wide")
	}
	if err == nil && x.Verdict == model.Deny.String() {
		return cli.ErrNo
	}
	return err
}

// ask explains a flow.
func (o *explainOptions) ask(s *model.Snapshot, flow model.Flow, versions []hns.Version) *explain.Report {
	x := explain.Flow(s, flow, o.Services, enforcedBy(s, flow, versions))
	x.Locate(o.Places)
	return x
}

// writeEnforced names the platforms that are exact in one line, and each of the others with
// its reason.
func writeEnforced(b *strings.Builder, checks []explain.Enforcement) {
	var exact []string
	for _, c := range checks {
		if c.Exact {
			exact = append(exact, c.Platform)
		}
	}
	if len(exact) > 0 {
		fmt.Fprintf(b, "  enforced  exactly by %s\n", strings.Join(exact, ", "))
	}
	for _, c := range checks {
		if !c.Exact {
			fmt.Fprintf(b, "  enforced  by %s as %s: %s\n", c.Platform, c.Verdict, strings.Join(c.Reasons, "; "))
		}
	}
}

// verb returns a role as the verb of n rules.
func verb(role policy.Role, n int) string {
	if n == 1 {
		return role.String()
	}
	return strings.NewReplacer("does not", "do not", "decides", "decide", "passes", "pass", "is not", "are not", "keeps its", "keep their").
		Replace(role.String())
}

// countRules counts the rules by their role, in one line.
func countRules(b *strings.Builder, rules []explain.Rule) {
	counts := make(map[string]int)
	for _, t := range rules {
		counts[t.Role]++
	}
	var parts []string
	for _, role := range []policy.Role{policy.Decides, policy.Passes, policy.MayPass, policy.NoMatch, policy.NotEvaluated} {
		if n := counts[role.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, verb(role, n)))
		}
	}
	fmt.Fprintf(b, "  rules     %d that could apply: %s (-o wide lists them)\n", len(rules), strings.Join(parts, ", "))
}
