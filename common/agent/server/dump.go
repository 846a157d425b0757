// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/isthmus-net/isthmus/common/agent"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/observe"
)

// dumpPart is the size of the parts of an archive.
const dumpPart = 64 << 10

// dumpEvents bounds the events in an archive.
const dumpEvents = 10000

// Dump implements isthmusv1.InspectServer.
func (s *inspectServer) Dump(r *isthmusv1.DumpRequest, stream grpc.ServerStreamingServer[isthmusv1.DumpResponse]) error {
	b, err := s.bundle(stream.Context(), r)
	if err != nil {
		return status.Error(codes.Unavailable, agent.AsError(err).Error())
	}
	out := bufio.NewWriterSize(partWriter{stream}, dumpPart)
	if err := b.Write(out); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return out.Flush()
}

// bundle returns what a request asks for.
func (s *inspectServer) bundle(ctx context.Context, r *isthmusv1.DumpRequest) (*inspect.Bundle, error) {
	if r.GetPolicies() {
		b := s.agent.Brief(ctx)
		if b.Counts == nil {
			b.Files = map[string][]byte{"events.jsonl": s.events(b)}
		}
		return b, ctx.Err()
	}
	b, err := s.agent.Dump(ctx)
	if err == nil && !r.GetBrief() {
		b.Files = map[string][]byte{"metrics.txt": s.metrics(), "events.jsonl": s.events(b)}
	}
	return b, err
}

// partWriter sends each write as one part.
type partWriter struct {
	stream grpc.ServerStreamingServer[isthmusv1.DumpResponse]
}

// Write implements io.Writer.
func (w partWriter) Write(p []byte) (int, error) {
	return len(p), w.stream.Send(&isthmusv1.DumpResponse{Data: bytes.Clone(p)})
}

// metrics returns what a scrape returns now.
func (s *inspectServer) metrics() []byte {
	answer := &httpAnswer{header: make(http.Header)}
	r, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return []byte(err.Error())
	}
	s.agent.Handler().ServeHTTP(answer, r)
	return answer.body.Bytes()
}

// httpAnswer is an http.ResponseWriter in memory.
type httpAnswer struct {
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *httpAnswer) Header() http.Header { return a.header }

// Write implements http.ResponseWriter.
func (a *httpAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }

// WriteHeader implements http.ResponseWriter.
func (a *httpAnswer) WriteHeader(int) {}

// events returns the kept flow events, one JSON object per line. If there are none it notes why.
func (s *inspectServer) events(b *inspect.Bundle) []byte {
	flows, err := s.agent.Flows()
	if err != nil {
		b.About.Notes = append(b.About.Notes, "events: "+err.Error())
		return nil
	}
	if why := flows.Incomplete(); why != "" {
		b.About.Notes = append(b.About.Notes, "events: "+why)
	}
	var out bytes.Buffer
	var undelivered uint64
	for _, d := range flows.Last(dumpEvents, observe.Filter{}) {
		if undelivered += d.Undelivered; d.Flow == nil {
			continue
		}
		line, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(flowMessage(d.Flow))
		if err != nil {
			continue // a name that is not valid UTF-8
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	if undelivered > 0 {
		b.About.Notes = append(b.About.Notes, fmt.Sprintf("events: %d more were not delivered: over --flow-event-rate of isthmus-agent, or not read from the kernel in time", undelivered))
	}
	return out.Bytes()
}
