// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/agent/loglevel"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

// controlServer changes how an agent reports. It changes nothing that an agent enforces.
type controlServer struct {
	isthmusv1.UnimplementedControlServer
	level *loglevel.Level
	log   *slog.Logger
}

// LogLevel implements ControlServer.
func (s *controlServer) LogLevel(_ context.Context, r *isthmusv1.LogLevelRequest) (*isthmusv1.LogLevelResponse, error) {
	if r.GetLevel() == "" && r.GetSeconds() != 0 {
		return nil, status.Error(codes.InvalidArgument, "a time without a level: give both")
	}
	if r.GetLevel() != "" {
		before := s.level.Get().Level
		if err := s.level.Set(r.GetLevel(), time.Duration(r.GetSeconds())*time.Second); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		// Written at every level: a quiet log must say why.
		s.log.Log(context.Background(), slog.LevelError, "log level was changed on the socket", "from", before, "to", r.GetLevel(), "seconds", r.GetSeconds())
	}
	state := s.level.Get()
	answer := &isthmusv1.LogLevelResponse{Level: state.Level, Configured: state.Configured}
	if !state.Until.IsZero() {
		answer.UntilUnixNano = state.Until.UnixNano()
	}
	return answer, nil
}
