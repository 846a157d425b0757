// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// eventFlags are the flags of the command events.
type eventFlags struct {
	shared
	follow         bool
	everywhere     bool
	last           uint32
	pod, namespace string
	verdicts       []string
}

func (e env) eventsCommand() *cobra.Command {
	s := &eventFlags{}
	c := &cobra.Command{
		Use:     "events",
		Aliases: []string{"monitor"},
		Short:   "Show the last new flows that policies decided on this node, and dropped packets",
		Long: `Show the last new flows that the policies of this node's pods decided, and packets that were dropped for other
reasons. Each event names the pod, the other end, and the policy and rule that decided. Packets of known flows cause
no events.

The agent keeps the last 2048 events; --follow continues with new ones. --flow-event-rate of isthmus-agent limits the
events of a pod per second. How many are missing, and where, is on the standard error, also without --follow;
isthmus_flow_events_missed_total counts them. "rules not known" means that the
agent no longer knows, or does not know yet, the policies that decided the flow.

isthmusctl monitor is isthmusctl events --follow.

Windows nodes report denied flows only, as Windows does not show allowed ones. The command says so on the standard
error.

Exit status: 0 the agent answered, 2 there is no answer.`,
		Example: `  isthmusctl events --follow --verdict deny,drop
  isthmusctl events --pod shop/web --last 20 -o json`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			s.follow = s.follow || c.CalledAs() == "monitor"
			request, err := s.request()
			if err != nil {
				return err
			}
			return e.watchFlows(c.Context(), s, request)
		}),
	}
	f := c.Flags()
	s.registerConnection(c)
	cli.RegisterOutput(c, &s.output, "text", "json")
	f.Lookup("output").Usage = "text, json (one object per line)"
	f.BoolVarP(&s.follow, "follow", "f", false, "continue until interrupted")
	f.Uint32Var(&s.last, "last", 100, "maximum number of past events to show; 0 for none")
	f.StringVar(&s.pod, "pod", "", "only flows with this pod at either end, as NAMESPACE/NAME")
	f.StringVarP(&s.namespace, "namespace", "n", "", "only flows with a pod of this namespace at either end")
	f.BoolVarP(&s.everywhere, "all-namespaces", "A", false, "flows of all namespaces, which is the default")
	f.StringSliceVar(&s.verdicts, "verdict", nil, "only these verdicts: allow, deny (by policy), drop (for another reason), observe (passed, because the pod is observed)")
	cli.CompleteFlag(c, "verdict", []string{"allow", "deny", "drop", "observe"})
	return c
}

// request checks the flags and builds a request.
func (s *eventFlags) request() (*isthmusv1.WatchFlowsRequest, error) {
	if s.output == "wide" || s.output == "yaml" {
		return nil, cli.Usagef("--output %q: give text or json", s.output)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	for _, v := range s.verdicts {
		if _, err := observe.ParseOutcome(v); err != nil {
			return nil, cli.Usagef("--%w", err)
		}
	}
	if s.everywhere && s.namespace != "" {
		return nil, cli.Usagef("--all-namespaces and --namespace: give one of them")
	}
	r := &isthmusv1.WatchFlowsRequest{Last: s.last, Follow: s.follow, PodNamespace: s.namespace, Verdicts: s.verdicts}
	if s.pod == "" {
		return r, nil
	}
	namespace, name, ok := strings.Cut(s.pod, "/")
	if !ok || namespace == "" || name == "" {
		return nil, cli.Usagef("--pod %q: give NAMESPACE/NAME", s.pod)
	}
	if s.namespace != "" {
		return nil, cli.Usagef("--pod and --namespace: give one of them")
	}
	r.PodNamespace, r.PodName = namespace, name
	return r, nil
}

// watchFlows writes events until the stream ends or the user interrupts it.
func (e env) watchFlows(ctx context.Context, s *eventFlags, request *isthmusv1.WatchFlowsRequest) error {
	write := writeFlowText
	if s.output == "json" {
		write = writeFlowJSON
	}
	stopped := ctx
	s.forever = s.follow
	return e.ask(ctx, &s.shared, func(ctx context.Context, agent isthmusv1.InspectClient) error {
		if err := e.noteAbsent(ctx, agent, s); err != nil {
			return err
		}
		stream, err := agent.WatchFlows(ctx, request)
		if err == nil {
			e.noteIncomplete(stream)
		}
		for err == nil {
			var m *isthmusv1.WatchFlowsResponse
			if m, err = stream.Recv(); err == nil {
				err = write(e.Stdout, e.Stderr, m)
			}
		}
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled && stopped.Err() != nil {
			return nil
		}
		return err
	})
}

// noteAbsent writes that the node has no such pod: it then is only the other end of flows.
func (e env) noteAbsent(ctx context.Context, agent isthmusv1.InspectClient, s *eventFlags) error {
	if s.pod == "" && s.namespace == "" {
		return nil
	}
	list, err := agent.ListEndpoints(ctx, &isthmusv1.ListEndpointsRequest{})
	if err != nil || slices.ContainsFunc(list.GetEndpoints(), func(p *isthmusv1.Endpoint) bool {
		return p.GetPodNamespace() == s.namespace || p.GetPodNamespace()+"/"+p.GetPodName() == s.pod
	}) {
		return err
	}
	absent := "pod " + s.pod + " is not attached to this node"
	if s.namespace != "" {
		absent = "no pod of namespace " + s.namespace + " is attached to this node"
	}
	e.Remark(false, absent+": it can only be the other end of flows here; ask the node on which it runs")
	return nil
}

// noteIncomplete writes which flows the node does not report. Without such a header the stream tells the error.
func (e env) noteIncomplete(stream grpc.ClientStream) {
	header, err := stream.Header()
	if err != nil {
		return
	}
	for _, why := range header.Get(isthmusv1.IncompleteHeader) {
		fmt.Fprintln(e.Stderr, "isthmusctl: "+why)
	}
}

func writeFlowText(out, notes io.Writer, m *isthmusv1.WatchFlowsResponse) error {
	if n := m.GetMissed(); n > 0 {
		fmt.Fprintf(notes, "isthmusctl: %d events are missing here: they came faster than they were read\n", n)
	}
	if n := m.GetUndelivered(); n > 0 {
		fmt.Fprintf(notes, "isthmusctl: %d events of all pods are missing here: over --flow-event-rate of isthmus-agent, or not read from the kernel in time\n", n)
	}
	if m.GetEvent() == nil {
		return nil
	}
	_, err := fmt.Fprintln(out, flowLine(m.GetEvent()))
	return err
}

// flowLine formats an event as one line:
// time verdict pod direction: source -> destination protocol: why.
func flowLine(f *isthmusv1.FlowEvent) string {
	var b strings.Builder
	pod := "no known pod"
	if f.GetPodName() != "" {
		pod = f.GetPodNamespace() + "/" + f.GetPodName()
	}
	fmt.Fprintf(&b, "%s %-5s %s %s", time.Unix(0, f.GetUnixNano()).UTC().Format("2006-01-02T15:04:05.000Z"), f.GetVerdict(), pod, f.GetDirection())
	if f.GetSrc() == "" {
		fmt.Fprintf(&b, ": frame of type 0x%04x", f.GetEtherType())
	} else {
		fmt.Fprintf(&b, ": %s", flowEnds(f))
	}
	switch why := f.GetCause(); {
	case f.GetReason() != "":
		fmt.Fprintf(&b, ": %s", f.GetReason())
	case why == "":
		b.WriteString(": rules not known")
	default:
		fmt.Fprintf(&b, ": %s", why)
	}
	return b.String()
}

// flowEnds formats source and destination. It adds a name to the end that is not the pod of
// the event.
func flowEnds(f *isthmusv1.FlowEvent) string {
	peer := ""
	switch {
	case f.GetPeerName() != "":
		peer = " (" + f.GetPeerNamespace() + "/" + f.GetPeerName() + ")"
	case f.GetPeerNode() != "":
		peer = " (node " + f.GetPeerNode() + ")"
	}
	src, dst, what := f.GetSrc(), f.GetDst(), f.GetProtocol()
	switch f.GetProtocol() {
	case "TCP", "UDP", "SCTP":
		what += fmt.Sprintf("/%d", f.GetDstPort())
	case "ICMP", "ICMPv6":
		if f.GetIcmpType() < model.UnknownICMPType {
			what += fmt.Sprintf(" type %d", f.GetIcmpType())
		}
	}
	if f.GetDirection() == "egress" {
		dst += peer
	} else {
		src += peer
	}
	if f.GetService() != "" {
		what += " by service " + f.GetService()
	}
	if f.GetMasquerade() != "" {
		what += " masqueraded as " + f.GetMasquerade()
	}
	return src + " -> " + dst + " " + what
}

// writeFlowJSON writes one object per line with every field, and the numbers of events that are missing before it.
func writeFlowJSON(out, _ io.Writer, m *isthmusv1.WatchFlowsResponse) error {
	var text, line bytes.Buffer
	if err := writeMessage(&text, "json", "FlowEvent", m); err != nil {
		return err
	}
	if err := json.Compact(&line, text.Bytes()); err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	line.WriteByte('\n')
	_, err := line.WriteTo(out)
	return err
}
