// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
)

func (e env) endpointsCommand() *cobra.Command {
	s := &shared{}
	var namespace, pod string
	var everywhere bool
	c := &cobra.Command{
		Use:   "endpoints",
		Short: "List the pods that are attached to this node, and those that are not",
		Long: `List the pods that are attached to this node, with the problems of their interfaces. Pods of this node without policy
follow, because no agent attached them.

ATTACHED says how: isthmus made the interface; chained, the plugin behind that of another network named it; adopted, the agent
found it; migrated, isthmusctl migrate took it over; no, it is not attached.

With -o wide, INGRESS and EGRESS count the decisions of policy on new flows since the pod was attached. The numbers are exact
on Linux: they do not depend on flow events. A denied packet that is sent again counts again. Windows does not count by pod.

Exit status: 0 the agent answered, 2 there is no answer, or the pod of --pod is not on this node.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			if everywhere && namespace != "" {
				return cli.Usagef("--all-namespaces and --namespace: give one of them")
			}
			if space, name, ok := strings.Cut(pod, "/"); pod != "" && (!ok || space == "" || name == "") {
				return cli.Usagef("--pod %q: give NAMESPACE/NAME", pod)
			}
			var list *isthmusv1.ListEndpointsResponse
			err := e.ask(c.Context(), s, func(ctx context.Context, agent isthmusv1.InspectClient) (err error) {
				list, err = agent.ListEndpoints(ctx, &isthmusv1.ListEndpointsRequest{})
				return err
			})
			if err != nil {
				return err
			}
			list.Endpoints = slices.DeleteFunc(list.GetEndpoints(), func(p *isthmusv1.Endpoint) bool {
				return namespace != "" && p.GetPodNamespace() != namespace || pod != "" && p.GetPodNamespace()+"/"+p.GetPodName() != pod
			})
			if pod != "" && len(list.Endpoints) == 0 {
				return fmt.Errorf("--pod %s: not attached to this node: ask the node on which it runs", pod)
			}
			if s.output == "json" || s.output == "yaml" {
				return writeMessage(e.Stdout, s.output, "Endpoints", list)
			}
			if namespace != "" && len(list.Endpoints) == 0 {
				e.Remark(false, fmt.Sprintf("no pod of namespace %s is on this node", namespace))
			}
			return writeEndpoints(e.Stdout, list.GetEndpoints(), s.output == "wide")
		}),
	}
	s.register(c)
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "only pods of this namespace")
	c.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "pods of all namespaces, which is the default")
	c.Flags().StringVar(&pod, "pod", "", "only this pod, as NAMESPACE/NAME")
	return c
}

func writeEndpoints(out io.Writer, list []*isthmusv1.Endpoint, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "POD\tADDRESSES\tPOLICY\tATTACHED\tPROBLEMS"
	if wide {
		head = "POD\tADDRESSES\tPOLICY\tATTACHED\tCONTAINER\tINTERFACE\tHOST INTERFACE\tTABLE\tPOLICIES\tLIMITS\tINGRESS\tEGRESS\tPROBLEMS"
	}
	fmt.Fprintln(w, head)
	for _, p := range list {
		pod := p.GetPodNamespace() + "/" + p.GetPodName()
		if p.GetPodName() == "" {
			pod = "unknown"
		}
		policy := "in force"
		switch {
		case p.GetUnenforced():
			policy = "NOT enforced"
		case p.GetObserved():
			policy = "observed"
		case p.GetTable() == "":
			policy = "default deny"
		}
		cells := []string{pod, cli.OrNone(strings.Join(p.GetAddresses(), ",")), policy, cmp.Or(p.GetAttached(), "unknown")}
		if wide {
			a := p.GetAttachment()
			cells = append(cells, cli.OrNone(a.GetContainerId()), cli.OrNone(a.GetIfName()), cli.OrNone(p.GetHostIfName()), cli.OrNone(p.GetTable()),
				cli.OrNone(strings.Join(p.GetPolicies(), ", ")), limits(p.GetBandwidth()))
			cells = append(cells, verdicts(p.GetVerdicts())...)
		}
		cells = append(cells, cli.OrNone(strings.Join(p.GetProblems(), "; ")))
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// verdicts returns the decisions on new flows of a pod, for ingress and egress.
func verdicts(v *isthmusv1.Verdicts) []string {
	if v == nil {
		return []string{"not counted", "not counted"}
	}
	text := func(allowed, denied uint64) string { return fmt.Sprintf("%d allowed, %d denied", allowed, denied) }
	return []string{text(v.GetIngressAllowed(), v.GetIngressDenied()), text(v.GetEgressAllowed(), v.GetEgressDenied())}
}

// limits returns the bandwidth limits of a pod's interface.
func limits(b *isthmusv1.Bandwidth) string {
	if b == nil {
		return "none"
	}
	return model.Bandwidth{Ingress: model.Limit{Rate: b.GetIngressRate()}, Egress: model.Limit{Rate: b.GetEgressRate()}}.String()
}
