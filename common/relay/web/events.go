// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	hubblerelay "github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/model"
)

// writeTimeout bounds the time that a client takes for an event.
const writeTimeout = 10 * time.Second

// stream is the client of a call inside of this process.
type stream struct {
	grpc.ServerStreamingServer[observer.GetFlowsResponse]
	ctx  context.Context
	send func(*observer.GetFlowsResponse) error
}

// Context implements grpc.ServerStream.
func (s stream) Context() context.Context { return s.ctx }

// Send implements grpc.ServerStreamingServer.
func (s stream) Send(m *observer.GetFlowsResponse) error { return s.send(m) }

// row is a flow as a page shows it.
type row struct {
	Time string `json:"time"`
	From string `json:"from"`
	To   string `json:"to"`
	Port string `json:"port"`
	Why  string `json:"why"`
	Node string `json:"node"`
}

// newRow returns the row of a flow.
func newRow(m *observer.GetFlowsResponse) row {
	f := m.GetFlow()
	r := row{Time: m.GetTime().AsTime().UTC().Format("15:04:05.000"), Why: f.GetSummary(), Node: m.GetNodeName(),
		From: endOf(f.GetSource(), f.GetIP().GetSource()), To: endOf(f.GetDestination(), f.GetIP().GetDestination())}
	l4 := f.GetL4()
	switch {
	case l4.GetTCP() != nil:
		r.Port = fmt.Sprintf("%s %d", model.TCP, l4.GetTCP().GetDestinationPort())
	case l4.GetUDP() != nil:
		r.Port = fmt.Sprintf("%s %d", model.UDP, l4.GetUDP().GetDestinationPort())
	case l4.GetSCTP() != nil:
		r.Port = fmt.Sprintf("%s %d", model.SCTP, l4.GetSCTP().GetDestinationPort())
	case l4.GetICMPv4() != nil:
		r.Port = model.ICMP.String()
	case l4.GetICMPv6() != nil:
		r.Port = model.ICMPv6.String()
	}
	return r
}

// endOf names an end of a flow by what the client may see of it.
func endOf(e *flow.Endpoint, address string) string {
	switch {
	case e.GetPodName() != "":
		return e.GetNamespace() + "/" + e.GetPodName()
	case address != "":
		return address
	}
	return cmp.Or(e.GetNamespace(), "hidden")
}

// events sends denied flows while they happen, as Server-Sent Events.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	_, q, err := request(r)
	begun := false
	if err == nil {
		q.Follow = true
		control := http.NewResponseController(w)
		// The server's limits are for pages. Here each event has a limit of its own.
		_ = control.SetReadDeadline(time.Time{})
		err = h.relay.GetFlows(q, stream{ctx: called(r), send: func(m *observer.GetFlowsResponse) error {
			text := event(m)
			if !begun {
				begun = true
				httpd.Hold(r.Context()) // the relay has authenticated the client, and bounds its streams
				w.Header().Set("Content-Type", "text/event-stream")
			}
			if len(text) == 0 {
				text = []byte(": \n\n")
			}
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := w.Write(text); err != nil {
				return err
			}
			err := control.Flush()
			_ = control.SetWriteDeadline(time.Time{})
			return err
		}})
	}
	if begun {
		if err != nil && r.Context().Err() == nil {
			_, _ = w.Write(encode("end", status.Convert(err).Message()))
		}
		return
	}
	http.Error(w, status.Convert(err).Message(), max(statusOf(err), http.StatusBadRequest))
}

// event encodes an answer for the page. It returns nil for an answer that the page does not show.
func event(m *observer.GetFlowsResponse) []byte {
	switch s := m.GetNodeStatus(); {
	case m.GetFlow() != nil:
		return encode("flow", newRow(m))
	case m.GetLostEvents() != nil:
		return encode("lost", m.GetLostEvents().GetNumEventsLost())
	case s.GetStateChange() == hubblerelay.NodeState_NODE_ERROR:
		return encode("node", strings.Join(s.GetNodeNames(), ", ")+": does not report all flows: "+clip(s.GetMessage()))
	case s.GetStateChange() == hubblerelay.NodeState_NODE_UNAVAILABLE || s.GetStateChange() == hubblerelay.NodeState_NODE_CONNECTED:
		state := "connected"
		if s.GetStateChange() == hubblerelay.NodeState_NODE_UNAVAILABLE {
			if state = "no answer"; s.GetMessage() != "" {
				state += ": " + clip(s.GetMessage())
			}
		}
		return encode("node", strings.Join(s.GetNodeNames(), ", ")+": "+state)
	}
	return nil
}

// encode returns an event whose data is JSON, which has no line ends.
func encode(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil { // texts and numbers
		panic(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", name, text)
	return b.Bytes()
}
