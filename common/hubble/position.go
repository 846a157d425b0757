// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

const (
	// afterHeader is the header of a request in which a client names the position after which it continues. Without one it asks
	// for positions only.
	afterHeader = "isthmus-after"
	// positionHeader is the header of an answer, with the position before the first event.
	positionHeader = "isthmus-position"
	// maxRun bounds the text that identifies a start of an agent, in bytes.
	maxRun = 32
)

// Position is a place among all flows of an agent since its start, with the lost ones. A client that follows flows
// continues there after its connection broke, gets no event twice and learns how many are missing. The zero value is no position.
type Position struct {
	run   string // of the agent
	flows uint64
}

// String returns the position as headers have it.
func (p Position) String() string {
	if p.run == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", p.run, p.flows)
}

// parsePosition reads a header. It returns the zero value for text that is no position: the stream then has no position, or
// begins as the request says.
func parsePosition(text string) Position {
	run, count, _ := strings.Cut(text, ":")
	flows, err := strconv.ParseUint(count, 10, 64)
	if err != nil || len(run) > maxRun {
		return Position{}
	}
	return Position{run, flows}
}

// Request returns the context of a request to an agent that continues after the position if the agent knows it.
func (p Position) Request(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, afterHeader, p.String())
}

// Begin sets the position to the beginning of a stream, from the header of the answers. A stream that failed has none, and
// leaves the position as it was.
func (p *Position) Begin(header metadata.MD) {
	if list := header.Get(positionHeader); len(list) == 1 {
		*p = parsePosition(list[0])
	}
}

// Advance sets the position to that after an answer.
func (p *Position) Advance(m *observer.GetFlowsResponse) {
	if n := m.GetIsthmusPosition(); n != 0 {
		p.flows = n
	}
}

// resumption returns the position that a client names, and whether it asks for positions.
func resumption(ctx context.Context) (p Position, asked bool) {
	list := metadata.ValueFromIncomingContext(ctx, afterHeader)
	if len(list) != 1 {
		return p, false
	}
	return parsePosition(list[0]), true
}

// run identifies this start of the agent: positions of another one mean nothing.
func (s *Server) run() string { return strconv.FormatInt(s.start.UnixNano(), 36) }
