// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// serviceName is the source of the agent's entries in the event log. The service may have another name.
const serviceName = "isthmus-agent"

// serveAs runs the agent as the flags request: as a Windows service that logs to the event log, or as an
// ordinary program.
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
	s := &windowsService{serve: func() error { return e.serve(ctx, o) }, stop: stop, fail: func(err error) {
		o.log.Logger(e.stderr).Error("the service has failed", "error", err)
		os.Exit(1)
	}}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("run as a service: %w: let the service manager start it, or remove --windows-service", err)
	}
	return s.err
}

// windowsService implements the interface of the service manager.
type windowsService struct {
	serve func() error
	stop  func()
	// fail ends the process, and does not return.
	fail func(error)
	err  error // the error of serve after a request to stop
}

// Execute implements svc.Handler. The service counts as running at once; readiness reports when a State is
// in force. An error ends the process, unless the service had a request to stop. A service that reports that it has stopped has not
// failed: the service manager then takes recovery actions only if a further setting of the service says so (failureflag).
func (s *windowsService) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ended := make(chan error, 1)
	go func() { ended <- s.serve() }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	stopping := false
	for {
		select {
		case err := <-ended:
			switch {
			case err == nil:
				return false, 0
			case !stopping:
				s.fail(err)
			}
			s.err = err
			return true, 1
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				stopping = true
				status <- svc.Status{State: svc.StopPending}
				s.stop()
			}
		}
	}
}

// eventWriter writes every line as an entry of the event log.
type eventWriter struct{ log *eventlog.Log }

// eventID is the id of all entries. Their text identifies the event.
const eventID = 1

// Write implements io.Writer. It reads the level from the line, in both log formats.
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
