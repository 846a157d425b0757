// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// Call is one call of a DLL.
type Call struct {
	// Op is "Create.network", "Open.endpoint" and so on, "Run.vfpctrl", or "HNSCall".
	Op     string
	Handle uint64
	// GUID is in lower-case text form.
	GUID string
	// Args are the settings or the query; for HNSCall they are method, path and request.
	Args [3]string
}

// Answer is the result of a call.
type Answer struct {
	Result uint32 // HRESULT
	Handle uint64
	// Output and Error are nil if the DLL does not set its output pointers.
	Output, Error *string
}

// Config configures a Service.
type Config struct {
	// HNS is the store. Only the service may change it.
	HNS     *hnstest.Fake
	Version hns.Version
	// Stack, if set, is the IP stack of the host, which iphlpapi.dll of Wine cannot change.
	Stack hostroute.Stack
	// Tracing has the sessions of ETW; nil for none.
	Tracing *tracing.Host
	// VFPControl answers vfpctrl.exe; nil for none. The error is what it prints.
	VFPControl func(args []string) (string, error)
	// Calls, if set, gets every call as a line of JSON.
	Calls io.Writer
	// Changed, if set, is called after every call that may have changed objects, before the answer.
	Changed func() error
	Log     *slog.Logger
}

// Service answers calls. Its methods may be called concurrently.
type Service struct {
	config  Config
	mu      sync.Mutex // serialises calls, as HNS does
	handles handles
	extra   extra
	shares  shares
	// balancers are the load balancers of extra, for the switch.
	balancers atomic.Pointer[[]vfp.Balancer]
	macs      []document // of the accelerated networking list
	faults    fault.Faults
	callsMu   sync.Mutex
	netnsMu   sync.Mutex
	netns     map[string]string // files of network namespaces, by HCN namespace
	readers   readers
}

// New returns a service.
func New(c Config) *Service {
	return &Service{config: c, handles: newHandles(), extra: newExtra(), shares: make(shares), netns: make(map[string]string)}
}

// NetNS returns the file of the network namespace that represents an HCN namespace, or "" if there
// is none.
func (s *Service) NetNS(namespace string) string {
	s.netnsMu.Lock()
	defer s.netnsMu.Unlock()
	return s.netns[strings.ToLower(namespace)]
}

// SetNetNS sets the network namespace that represents an HCN namespace.
func (s *Service) SetNetNS(namespace, file string) {
	s.netnsMu.Lock()
	defer s.netnsMu.Unlock()
	s.netns[strings.ToLower(namespace)] = file
}

// AllNetNS returns the files of all network namespaces, by HCN namespace.
func (s *Service) AllNetNS() map[string]string {
	s.netnsMu.Lock()
	defer s.netnsMu.Unlock()
	return maps.Clone(s.netns)
}

// Do makes one call for a client. The client owns the returned handles.
func (s *Service) Do(client string, c Call) Answer {
	if verb, kind, _ := strings.Cut(c.Op, "."); kind == "stack" { // a call of iphlpapi.dll: not subject to faults, and not logged
		a, err := s.stack(verb, c.Args[0])
		if err != nil {
			return refuse(c, err)
		}
		return a
	}
	if verb, kind, _ := strings.Cut(c.Op, "."); kind == "etw" { // as above
		a, err := s.etw(c, verb)
		if err != nil {
			return refuse(c, err)
		}
		return a
	}
	start := time.Now()
	a := s.answer(client, c)
	s.note(client, c, a, time.Since(start))
	return a
}

func (s *Service) answer(client string, c Call) Answer {
	hit := s.faults.Take(c.Op, append([]string{c.GUID}, c.Args[:]...)...)
	hit.Wait()
	if hit.Lie {
		return Answer{}
	}
	if hit.Code != 0 && !hit.After {
		return refuse(c, hns.NewError(c.Op, hit.Code, hit.Says()))
	}
	s.mu.Lock()
	a, err := s.dispatch(client, c)
	if err == nil && s.config.Changed != nil && changes(c) {
		s.noteBalancers()
		err = s.config.Changed()
	}
	s.config.HNS.ForgetCalls()
	s.mu.Unlock()
	time.Sleep(hit.Linger)
	if err == nil && hit.Code != 0 {
		err = hns.NewError(c.Op, hit.Code, hit.Says())
	}
	if err != nil {
		return refuse(c, err)
	}
	return a
}

// changes reports whether a call may change what is stored.
func changes(c Call) bool {
	verb, _, _ := strings.Cut(c.Op, ".")
	return verb == "Create" || verb == "Modify" || verb == "Delete" || c.Op == "HNSCall" && c.Args[0] != "GET"
}

// refuse returns the answer to a failed call.
func refuse(c Call, err error) Answer {
	code, text := hns.CodeUnexpected, err.Error()
	var e *hns.Error
	if errors.As(err, &e) {
		code, text = e.Code, e.Text
	}
	// The system's messages end with a space.
	document, _ := json.Marshal(map[string]any{"Success": false, "Error": text + " ", "ErrorCode": code})
	answer := string(document)
	if c.Op == "HNSCall" { // HNSCall itself succeeds; its document has the error
		return Answer{Output: &answer}
	}
	return Answer{Result: code, Error: &answer}
}

func (s *Service) dispatch(client string, c Call) (Answer, error) {
	if c.Op == "HNSCall" {
		return s.schema1(c)
	}
	verb, kind, _ := strings.Cut(c.Op, ".")
	switch verb {
	case "Enumerate":
		return s.enumerate(kind, c.Args[0])
	case "Open":
		if kind == systems {
			return s.openSystem(client, c.Args[0])
		}
		if _, err := s.get(kind, c.GUID); err != nil {
			return Answer{}, err
		}
		return Answer{Handle: s.handles.open(client, kind, c.GUID)}, nil
	case "Create":
		id, err := s.create(c, kind)
		if err != nil {
			return Answer{}, err
		}
		return Answer{Handle: s.handles.open(client, kind, id)}, nil
	case "Run":
		return s.vfpctrl(c)
	case "Delete":
		return Answer{}, s.delete(kind, c.GUID)
	case "Close":
		return Answer{}, s.handles.close(c.Handle)
	}
	h, err := s.handles.get(c.Handle, kind)
	if err != nil {
		return Answer{}, err
	}
	switch verb {
	case "Modify":
		if kind == systems {
			return Answer{}, s.modifySystem(h.id, c.Args[0])
		}
		return Answer{}, s.modify(kind, h.id, c.Args[0])
	case "Query":
		if kind == systems {
			return output(systemDocument(h.id))
		}
		object, err := s.get(kind, h.id)
		if err != nil {
			return Answer{}, err
		}
		return output(object)
	case "Stats":
		stats, err := s.config.HNS.EndpointStats(context.Background(), h.id)
		if err != nil {
			return Answer{}, err
		}
		return output(statsDocument(h.id, stats))
	}
	return Answer{}, hns.NewError(c.Op, hns.CodeNotImplemented, "Not implemented")
}

func output(v any) (Answer, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return Answer{}, fmt.Errorf("render answer: %w", err)
	}
	out := string(text)
	return Answer{Output: &out}, nil
}

// Disconnect closes the handles of a client that has ended.
func (s *Service) Disconnect(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles.forget(client)
}

// Handles returns the number of open handles.
func (s *Service) Handles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles.objects)
}

// Restart simulates a restart of the service, which invalidates all handles. With reboot, objects
// that do not survive a reboot are removed too.
func (s *Service) Restart(reboot bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles = newHandles()
	if reboot {
		s.config.HNS.Reboot()
		s.extra, s.shares = newExtra(), make(shares)
	}
	s.noteBalancers()
	if s.config.Changed != nil {
		return s.config.Changed()
	}
	return nil
}

// note logs a call. Handles in the log are numbers of this process.
func (s *Service) note(client string, c Call, a Answer, took time.Duration) {
	if s.config.Calls == nil {
		return
	}
	line := struct {
		Client, Op, GUID string
		Handle           uint64
		Args             []string
		Result           string
		Answer           string
		Microseconds     int64
	}{Client: client, Op: c.Op, GUID: c.GUID, Handle: c.Handle, Result: fmt.Sprintf("%#08x", a.Result), Microseconds: took.Microseconds()}
	for _, arg := range c.Args {
		if arg != "" {
			line.Args = append(line.Args, arg)
		}
	}
	for _, text := range []*string{a.Output, a.Error} {
		if text != nil {
			line.Answer = *text
		}
	}
	text, _ := json.Marshal(line)
	s.callsMu.Lock()
	defer s.callsMu.Unlock()
	if _, err := s.config.Calls.Write(append(text, '\n')); err != nil {
		s.config.Log.Warn("cannot write the log of calls", "error", err)
	}
}
