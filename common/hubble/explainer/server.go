// SPDX-License-Identifier: Apache-2.0

package explainer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	// keep is how long the decisions that were read back are used again. It bounds how often relays make an agent read them.
	keep = 5 * time.Second
	// part is the size of the parts of a stream, in bytes.
	part = 64 << 10
	// maxSending bounds the clients that objects are sent to at a time.
	maxSending = 4
	// keepReport is how long the report about the node is used again.
	keepReport = 10 * time.Second
	// maxReport bounds an explanation in bytes. Clients of gRPC accept 1 MB.
	maxReport = 768 << 10
	// maxRules and maxMisses bound what remains of an answer that is larger.
	maxRules, maxMisses = 100, 4
)

// Config connects a Server with its node. Lists may be nil on Linux.
type Config struct {
	// Snapshot returns the newest objects, or nil.
	Snapshot func() *model.Snapshot
	// Dump reads the data path back.
	Dump func(context.Context) (*inspect.Bundle, error)
	// Brief returns the node, its policies and the numbers of rules.
	Brief func(context.Context) *inspect.Bundle
	// Lists decides by ACLs of HNS.
	Lists trace.Lists
}

// Server implements isthmusv1.ExplainServer.
type Server struct {
	isthmusv1.UnimplementedExplainServer
	cfg Config

	// turn holds a token while a call explains a flow: one at a time.
	turn chan struct{}
	// sending holds a token for each call that sends objects. A client that does not read them delays no other.
	sending chan struct{}
	read    *node // the last reading; it belongs to the holder of turn
	// reporting holds a token while a call makes the report, which the other fields keep.
	reporting  chan struct{}
	report     []byte
	reportedAt time.Time

	mutex   sync.Mutex // of known and version
	known   *model.Snapshot
	version string
}

// node is a node as it was read.
type node struct {
	at        time.Time
	bundle    *inspect.Bundle
	snapshot  *model.Snapshot
	installed trace.Installed
}

// New returns a Server.
func New(c Config) *Server {
	return &Server{cfg: c, turn: make(chan struct{}, 1), sending: make(chan struct{}, maxSending), reporting: make(chan struct{}, 1)}
}

// Register adds the service to a server.
func (s *Server) Register(g *grpc.Server) { isthmusv1.RegisterExplainServer(g, s) }

// errUnknown is the answer of a node that knows no objects.
var errUnknown = status.Error(codes.Unavailable, "the state of the cluster is not known yet")

// take waits for the token of a turn. The caller calls give at its end.
func take(ctx context.Context, turn chan struct{}) (give func(), err error) {
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// GetCluster implements isthmusv1.ExplainServer.
func (s *Server) GetCluster(r *isthmusv1.GetClusterRequest, stream grpc.ServerStreamingServer[isthmusv1.GetClusterResponse]) error {
	snapshot := s.cfg.Snapshot()
	if snapshot == nil {
		return errUnknown
	}
	version := s.versionOf(snapshot)
	if err := stream.Send(&isthmusv1.GetClusterResponse{Version: version}); err != nil || r.GetHave() == version {
		return err
	}
	select {
	case s.sending <- struct{}{}:
		defer func() { <-s.sending }()
	default:
		return status.Errorf(codes.ResourceExhausted, "the agent sends objects to %d clients already: try again later", maxSending)
	}
	out := bufio.NewWriterSize(parts(func(b []byte) error { return stream.Send(&isthmusv1.GetClusterResponse{Data: b}) }), part)
	if err := inspect.WriteObjects(out, snapshot); err != nil {
		return err
	}
	return out.Flush()
}

// versionOf names a snapshot. Names of other agents, and of earlier ones of this node, are different.
func (s *Server) versionOf(snapshot *model.Snapshot) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.known != snapshot {
		s.known, s.version = snapshot, rand.Text()
	}
	return s.version
}

// parts sends each write as one part.
type parts func([]byte) error

// Write implements io.Writer.
func (send parts) Write(b []byte) (int, error) { return len(b), send(bytes.Clone(b)) }

// GetReport implements isthmusv1.ExplainServer. Calls share a report for some seconds, so that readers cost a bounded part of a
// processor.
func (s *Server) GetReport(_ *isthmusv1.GetReportRequest, stream grpc.ServerStreamingServer[isthmusv1.GetReportResponse]) error {
	report, err := s.currentReport(stream.Context())
	for err == nil && len(report) > 0 {
		n := min(part, len(report))
		err = stream.Send(&isthmusv1.GetReportResponse{Data: report[:n]})
		report = report[n:]
	}
	return err
}

// currentReport returns a report that is not older than keepReport. It is not changed.
func (s *Server) currentReport(ctx context.Context) ([]byte, error) {
	give, err := take(ctx, s.reporting)
	if err != nil {
		return nil, err
	}
	defer give()
	if s.report != nil && time.Since(s.reportedAt) < keepReport {
		return s.report, nil
	}
	b := s.cfg.Brief(ctx)
	if err := ctx.Err(); err != nil { // the report of a client that is gone may lack numbers
		return nil, status.FromContextError(err).Err()
	}
	report, err := json.Marshal(usage.NewReport(b))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	at := time.Now()
	s.report, s.reportedAt = report, at
	time.AfterFunc(keepReport, func() {
		s.reporting <- struct{}{}
		if s.reportedAt.Equal(at) {
			s.report = nil
		}
		<-s.reporting
	})
	return report, nil
}

// ExplainFlow implements isthmusv1.ExplainServer.
func (s *Server) ExplainFlow(ctx context.Context, r *isthmusv1.ExplainFlowRequest) (*isthmusv1.ExplainFlowResponse, error) {
	f, err := flowOf(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	give, err := take(ctx, s.turn)
	if err != nil {
		return nil, err
	}
	defer give()
	n, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := encode(n.explain(f))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &isthmusv1.ExplainFlowResponse{Report: raw}, nil
}

// flowOf reads a request.
func flowOf(r *isthmusv1.ExplainFlowRequest) (f model.Flow, err error) {
	if f.Src, err = netip.ParseAddr(r.GetSrc()); err != nil {
		return f, fmt.Errorf("src: %w", err)
	}
	if f.Dst, err = netip.ParseAddr(r.GetDst()); err != nil {
		return f, fmt.Errorf("dst: %w", err)
	}
	f.Src, f.Dst = f.Src.Unmap(), f.Dst.Unmap()
	switch {
	case f.Src.Zone() != "" || f.Dst.Zone() != "" || f.Src.Is4() != f.Dst.Is4():
		return f, fmt.Errorf("src %s, dst %s: give addresses of one family, without zones", f.Src, f.Dst)
	case r.GetProtocol() > math.MaxUint8:
		return f, fmt.Errorf("protocol %d: give a number up to 255", r.GetProtocol())
	case r.GetPort() > math.MaxUint16:
		return f, fmt.Errorf("port %d: give a number up to 65535", r.GetPort())
	}
	f.Protocol, f.Port = model.Protocol(r.GetProtocol()), uint16(r.GetPort())
	return f, nil
}

// current returns a reading of the data path that is not older than keep.
func (s *Server) current(ctx context.Context) (*node, error) {
	if s.read != nil && time.Since(s.read.at) < keep {
		return s.read, nil
	}
	if s.cfg.Snapshot() == nil {
		return nil, errUnknown
	}
	s.read = nil
	b, err := s.cfg.Dump(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	installed, err := trace.InstalledOf(b, s.cfg.Lists)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	n := &node{time.Now(), b, b.Snapshot(), installed}
	s.read = n
	time.AfterFunc(keep, func() { // its memory is a few megabytes
		s.turn <- struct{}{}
		if s.read == n {
			s.read = nil
		}
		<-s.turn
	})
	return n, nil
}

// explain explains a flow at the ends that are pods of the node.
func (n *node) explain(f model.Flow) *explain.Report {
	x, t := explain.Flow(n.snapshot, f, nil, nil), trace.Flow(n.bundle, n.snapshot, f, n.installed)
	own := x.Sides[:0]
	for _, side := range x.Sides {
		if side.Node == n.bundle.About.Node {
			side.Enforced = []explain.Enforcement{n.enforced(&side, t)}
			own = append(own, side)
		}
	}
	x.Sides = own
	return x
}

// enforced returns what the data path decides at one end.
func (n *node) enforced(side *explain.Side, t *trace.Report) explain.Enforcement {
	e := explain.Enforcement{Platform: n.bundle.About.Platform, Verdict: "unknown", Reasons: []string{}}
	for _, step := range t.Steps {
		if step.Where != side.Pod {
			continue
		}
		switch step.What {
		case "attachment":
			if step.Drift && len(step.Wrong) == 0 {
				e.Reasons = append(e.Reasons, step.Text)
			}
			e.Reasons = append(e.Reasons, step.Wrong...)
		case side.Direction + " policy":
			e.Verdict = step.Installed
			e.Exact = step.Installed == side.Decision.Verdict && !step.Drift
			e.Reasons = append(e.Reasons, step.Wrong...)
		}
	}
	e.Exact = e.Exact && len(e.Reasons) == 0
	return e
}

// encode encodes a report. It shortens one that is too large, and says so in the report.
func encode(x *explain.Report) ([]byte, error) {
	raw, err := json.Marshal(x)
	if err != nil || len(raw) <= maxReport {
		return raw, err
	}
	for i := range x.Sides {
		side := &x.Sides[i]
		side.Notes = append(side.Notes, fmt.Sprintf("the first %d of %d rules and of %d edits are listed: isthmusctl explain lists all", maxRules, len(side.Rules), len(side.Changes)))
		side.Rules, side.Changes = first(side.Rules, maxRules), first(side.Changes, maxRules)
		for j := range side.Rules {
			r := &side.Rules[j]
			r.PeerMisses, r.PortMisses = first(r.PeerMisses, maxMisses), first(r.PortMisses, maxMisses)
		}
		for j := range side.Changes {
			side.Changes[j].Misses = first(side.Changes[j].Misses, maxMisses)
		}
	}
	return json.Marshal(x)
}

// first returns at most the given number of items.
func first[T any](all []T, most int) []T { return all[:min(len(all), most)] }
