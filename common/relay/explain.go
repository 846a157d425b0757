// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

// explainTimeout bounds the wait for the explanation of a node, which reads its data path back.
const explainTimeout = 5 * time.Second

// reader returns what the client of a call may read of namespaces; without names, of all. An error is one of a Checker.
func (r *Relay) reader(ctx context.Context, namespaces ...string) (access.Scope, error) {
	if r.checker == nil {
		return access.Everything, nil
	}
	u, err := r.checker.User(ctx, token(ctx))
	if err != nil {
		return access.Scope{}, err
	}
	return r.checker.Scope(ctx, u, access.Get, namespaces)
}

// AllowNamespaces returns an error unless the client of a call may read the flows of namespaces; without names, of all.
func (r *Relay) AllowNamespaces(ctx context.Context, namespaces ...string) error {
	_, err := r.reader(ctx, namespaces...)
	return r.refusal(err)
}

// AllowEnds returns an error unless the client of a call may read flows between two ends, as ends.Addresses reads them.
// Addresses outside of the cluster need no right. Nodes, addresses of pods that are not known, and pods of other
// namespaces given by address need the right for all namespaces, so that the answer does not show whose they are. Without
// ends it authenticates the client.
func (r *Relay) AllowEnds(ctx context.Context, s *model.Snapshot, texts ...string) error {
	_, err := r.ends(ctx, s, texts)
	return err
}

// ends returns what the client of a call may read, who explains flows between ends.
func (r *Relay) ends(ctx context.Context, s *model.Snapshot, texts []string) (access.Scope, error) {
	all, err := r.reader(ctx)
	denied := (*access.DeniedError)(nil)
	if !errors.As(err, &denied) {
		return all, r.refusal(err)
	}
	var scope access.Scope
	// see adds a namespace to the scope. Its error names the given right, or says why there is no answer.
	see := func(namespace string, missing error) error {
		if scope.Sees(namespace) {
			return nil
		}
		one, err := r.reader(ctx, namespace)
		switch {
		case errors.As(err, new(*access.DeniedError)) && missing != nil:
			return r.refusal(missing)
		case err != nil:
			return r.refusal(err)
		}
		scope.Nodes = one.Nodes
		scope.Namespaces = slices.Sorted(slices.Values(append(scope.Namespaces, namespace)))
		return nil
	}
	if len(texts) == 0 {
		return scope, nil
	}
	owners := s.Owners()
	for _, text := range texts {
		namespace, _, named := strings.Cut(text, "/")
		switch {
		case named && !redact.IsNamespace(namespace):
			return access.Scope{}, status.Errorf(codes.InvalidArgument, "%q: the part before / is not the name of a namespace", text[:min(80, len(text))])
		case strings.HasPrefix(text, "node:"):
			return access.Scope{}, r.refusal(denied)
		case named:
			if err := see(namespace, nil); err != nil {
				return access.Scope{}, err
			}
		}
		addresses, err := ends.Addresses(s, text)
		if err != nil {
			continue // names nothing, or a pod of a namespace that the client reads
		}
		for _, a := range addresses {
			pod := owners.Pods[a]
			if pod == nil && (owners.Nodes[a] != nil || s.PodRange(a)) {
				return access.Scope{}, r.refusal(denied)
			}
			if pod == nil {
				continue
			}
			if err := see(pod.Namespace, denied); err != nil {
				return access.Scope{}, err
			}
		}
	}
	return scope, nil
}

// Explain explains a flow. The node of each end answers for it; if it does not, the policies answer, and the report says
// so. The client sees what it may see.
func (r *Relay) Explain(ctx context.Context, s *model.Snapshot, f model.Flow) (*explain.Report, error) {
	scope, err := r.ends(ctx, s, []string{f.Src.String(), f.Dst.String()})
	if err != nil {
		return nil, err
	}
	x := explain.Flow(s, f, nil, nil)
	var asking sync.WaitGroup
	for i := range x.Sides {
		asking.Go(func() { x.Sides[i] = r.side(ctx, x.Sides[i], f, scope.Nodes) })
	}
	asking.Wait()
	x.Verdict = model.Allow.String()
	if len(x.DenyLists) > 0 {
		x.Verdict = model.Deny.String()
	}
	for i := range x.Sides {
		if x.Sides[i].Decision.Verdict == model.Deny.String() {
			x.Verdict = model.Deny.String()
		}
	}
	return redact.Report(scope, x), nil
}

// side returns the side of a report as the node of its pod explains it.
func (r *Relay) side(ctx context.Context, known explain.Side, f model.Flow, named bool) explain.Side {
	name := "the node of the pod"
	if named {
		name = "node " + known.Node
	}
	answer, err := r.ask(ctx, known.Node, f)
	if err != nil {
		r.log.Warn("explain a flow", "node", known.Node, "error", err)
		known.Notes = append(known.Notes, name+" does not answer: this is what the policies say. What it enforces is not known")
		return known
	}
	for _, side := range answer.Sides {
		if side.Direction == known.Direction && side.Pod == known.Pod && side.Node == known.Node && valid(side.Decision.Verdict) {
			if side.Decision.Verdict != known.Decision.Verdict {
				side.Notes = append(side.Notes, fmt.Sprintf("%s knows other objects than those of this page, by which the verdict is %s: load the page again in a moment", name, known.Decision.Verdict))
			}
			return side
		}
	}
	known.Notes = append(known.Notes, name+" does not know the pod at this address yet: this is what the policies say")
	return known
}

// valid reports whether an agent gave a verdict.
func valid(verdict string) bool {
	return verdict == model.Allow.String() || verdict == model.Deny.String()
}

// ask returns the explanation of a node.
func (r *Relay) ask(ctx context.Context, name string, f model.Flow) (*explain.Report, error) {
	list := r.pool.list()
	i := slices.IndexFunc(list, func(n *node) bool { return n.name == name })
	switch {
	case i < 0:
		return nil, errors.New("the relay does not know the node")
	case list[i].conn == nil:
		return nil, errNoPort
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	a, err := isthmusv1.NewExplainClient(list[i].conn).ExplainFlow(ctx, &isthmusv1.ExplainFlowRequest{
		Src: f.Src.String(), Dst: f.Dst.String(), Protocol: uint32(f.Protocol), Port: uint32(f.Port)})
	if err != nil {
		return nil, err
	}
	x := new(explain.Report)
	if err := json.Unmarshal(a.GetReport(), x); err != nil {
		return nil, fmt.Errorf("read the explanation: %w", err)
	}
	return x, nil
}

// Notes says which node gave the objects, and which nodes did not answer the last check of Watch: a page neither waits for them
// nor asks them. A client without the right to data of nodes
// learns how many.
func (r *Relay) Notes(ctx context.Context) []string {
	named := r.require(ctx, access.Right{Verb: access.Get, Resource: access.Nodes}) == nil
	var notes, down []string
	if node, at := r.objects.node.Load(), r.objects.checked.Load(); node != nil && at != nil && named {
		notes = append(notes, fmt.Sprintf("These are the policies and pods that node %s knew at %s.", *node, at.UTC().Format("15:04:05 UTC")))
	}
	r.health.mutex.Lock()
	all := r.health.last
	r.health.mutex.Unlock()
	for _, a := range all {
		if a.err != nil {
			down = append(down, a.node.name)
		}
	}
	switch {
	case all == nil:
		notes = append(notes, "The relay has just started and does not know yet which nodes answer: load the page again in a moment")
	case len(down) == 0:
	case named:
		notes = append(notes, fmt.Sprintf("%d of %d nodes do not answer, so that what they enforce is not known: %s", len(down), len(all), strings.Join(down, ", ")))
	default:
		notes = append(notes, fmt.Sprintf("Nodes that do not answer, so that what they enforce is not known: %d", len(down)))
	}
	return notes
}
