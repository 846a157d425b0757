// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"log/slog"

	"github.com/isthmus-net/isthmus/common/model"
)

// logDenied logs a denied or dropped packet.
func logDenied(log *slog.Logger, f *Flow) {
	var attrs []any
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, name, value)
		}
	}
	pod := func(name string, p model.PodID) {
		if p != (model.PodID{}) {
			add(name, p.String())
		}
	}
	pod("pod", f.Pod)
	add("direction", f.Direction.String())
	add("reason", f.Drop.String())
	if f.Cause != nil {
		add("because", f.Cause.String())
	}
	if f.Src.IsValid() {
		add("src", f.Src.String())
		add("dst", f.Dst.String())
		add("protocol", f.Protocol.String())
	}
	if f.DstPort != 0 {
		attrs = append(attrs, "src port", f.SrcPort, "dst port", f.DstPort)
	}
	if f.Service.IsValid() {
		add("service", f.Service.String())
	}
	if f.Masquerade.IsValid() {
		add("masquerade", f.Masquerade.String())
	}
	pod("peer", f.Peer)
	add("peer node", f.PeerNode)
	message := "flow denied"
	switch f.Outcome() {
	case Dropped:
		message = "flow dropped"
	case Observed:
		message = "flow observed"
	}
	log.Info(message, attrs...)
}
