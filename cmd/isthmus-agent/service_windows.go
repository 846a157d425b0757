// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// serviceName is the source of the agent's entries in the event log. The service
// may have another name.
const serviceName = "isthmus-agent"

// serveAs runs the agent as what the flags say: a service of Windows, whose log
// is the event log, or a program like others.
func (e env) serveAs(ctx context.Context, o *options) error {
	if !o.windowsService {
		return e.serve(ctx, o)
	}
	log, err := eventlog.Open(serviceName)
	if err != nil {
		return fmt.Errorf("open the event log: %w", err)
	}
	defer log.Close()
	e.stderr = eventWriter{log}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &windowsService{serve: func() error { return e.serve(ctx, o) }, stop: stop}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("run as a service: %w: let the service manager start it, or leave out --windows-service", err)
	}
	return s.err
}

// windowsService is what the service manager talks to.
type windowsService struct {
	serve func() error
	stop  func()
	err   error // of serve
}

// Execute implements svc.Handler. The agent counts as running at once: it is
// the readiness that tells when a State is in force. An error ends it with the
// exit code 1, on which the service manager's recovery actions go by.
func (s *windowsService) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ended := make(chan error, 1)
	go func() { ended <- s.serve() }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	for {
		select {
		case s.err = <-ended:
			if s.err != nil {
				return true, 1
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				s.stop()
			}
		}
	}
}

// eventWriter makes an entry of the event log of every line.
type eventWriter struct{ log *eventlog.Log }

// eventID is that of all entries: their text says what they are.
const eventID = 1

// Write implements io.Writer. The level is read from the line, as both formats
// of the log write it.
func (w eventWriter) Write(line []byte) (int, error) {
	is := func(level string) bool {
		return bytes.Contains(line, []byte("level="+level)) || bytes.Contains(line, []byte(`"level":"`+level))
	}
	entry := w.log.Info
	switch {
	case is("ERROR"):
		entry = w.log.Error
	case is("WARN"):
		entry = w.log.Warning
	}
	if err := entry(eventID, string(bytes.TrimSpace(line))); err != nil {
		return 0, err
	}
	return len(line), nil
}
