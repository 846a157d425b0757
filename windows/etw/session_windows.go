// SPDX-License-Identifier: Apache-2.0

package etw

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Constants of evntrace.h, evntcons.h and evntprov.h.
const (
	wnodeTracedGUID      = 0x00020000
	clockSystemTime      = 2
	modeRealTime         = 0x00000100
	modeNoPerProcessor   = 0x10000000
	controlQuery         = 0
	controlStop          = 1
	enableProvider       = 1
	processRealTime      = 0x00000100
	processEventRecord   = 0x10000000
	filterTypeEventID    = 0x80000200
	parametersVersion    = 2
	invalidTrace         = ^uintptr(0)
	bufferKB, maxBuffers = 64, 32
	flushSeconds         = 1
)

// pollLost is the interval of reading the number of lost events from Windows.
const pollLost = time.Second

// Session is a Source: a real-time session of ETW. Windows keeps a session of a process that has ended; Read replaces
// one of the same name.
type Session struct {
	cfg      Config
	provider windows.GUID
	lost     atomic.Uint64 // of ended readers
	mu       sync.Mutex    // guards current
	current  *reader
}

var _ Source = (*Session)(nil)

// New returns a Session that is not started.
func New(c Config) (*Session, error) {
	provider, err := windows.GUIDFromString(c.Provider)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", c.Provider, err)
	}
	return &Session{cfg: c, provider: provider}, nil
}

// Lost implements Source.
func (s *Session) Lost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return s.lost.Load()
	}
	return s.lost.Load() + s.current.lost()
}

// reader is one run of Read. Its memory is pinned while Windows refers to it.
type reader struct {
	decoder *Decoder
	queue   *Queue
	name    *uint16
	// undecoded counts events that could not be decoded, unread those that Windows lost.
	undecoded, unread atomic.Uint64
	// failed is why the decoder gave up. The callback alone uses it until ProcessTrace returns; flooded is closed
	// when it is set.
	failed  error
	flooded chan struct{}
}

func (r *reader) lost() uint64 { return r.undecoded.Load() + r.unread.Load() + r.queue.Lost() }

// Read implements Source.
func (s *Session) Read(ctx context.Context, f func([]Event)) error {
	if err := load(); err != nil {
		return fmt.Errorf("read events of Windows: %w", err)
	}
	name, err := windows.UTF16PtrFromString(s.cfg.Name)
	if err != nil {
		return fmt.Errorf("session name %q: %w", s.cfg.Name, err)
	}
	r := &reader{decoder: NewDecoder(s.cfg.Wanted), queue: NewQueue(), name: name, flooded: make(chan struct{})}
	s.mu.Lock()
	s.current = r
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lost.Add(r.lost())
		s.current = nil
	}()
	session, err := r.start()
	if err != nil {
		return err
	}
	defer stop(name)
	if err := s.enable(session, r.decoder); err != nil {
		return err
	}
	return r.process(ctx, f)
}

// start starts the session, in place of one that an earlier process left.
func (r *reader) start() (uintptr, error) {
	for attempt := 0; ; attempt++ {
		p := newProperties()
		p.bufferKB, p.minimumBuffers, p.maximumBuffers = bufferKB, 4, maxBuffers
		p.logFileMode, p.flushTimer = modeRealTime|modeNoPerProcessor, flushSeconds
		var session uintptr
		err := code(startTrace, uintptr(unsafe.Pointer(&session)), uintptr(unsafe.Pointer(r.name)), uintptr(unsafe.Pointer(p)))
		if err == nil || attempt > 0 || !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
			return session, err
		}
		if err := stop(r.name); err != nil {
			return 0, err
		}
	}
}

// newProperties returns EVENT_TRACE_PROPERTIES that Windows can answer in.
func newProperties() *traceProperties {
	p := &traceProperties{flags: wnodeTracedGUID, clientContext: clockSystemTime, loggerNameOffset: propertiesSize}
	p.bufferSize = uint32(unsafe.Sizeof(*p))
	return p
}

// stop ends the session of a name. A missing session is not an error.
func stop(name *uint16) error {
	err := code(controlTrace, 0, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(newProperties())), controlStop)
	if errors.Is(err, windows.ERROR_WMI_INSTANCE_NOT_FOUND) {
		return nil
	}
	return err
}

// Stop ends the session of a name, which a process may have left. A missing session is not an error.
func Stop(name string) error {
	if err := load(); err != nil {
		return err
	}
	p, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return fmt.Errorf("session name %q: %w", name, err)
	}
	return stop(p)
}

// enable lets the provider write the events that are wanted to the session.
func (s *Session) enable(session uintptr, d *Decoder) error {
	ids := s.ids(d)
	filter := &eventIDFilter{filterIn: 1, count: uint16(len(ids))}
	copy(filter.ids[:], ids)
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(filter)
	descriptor := &filterDescriptor{pointer: uint64(uintptr(unsafe.Pointer(filter))), size: uint32(4 + 2*len(ids)), kindOfIt: filterTypeEventID}
	pins.Pin(descriptor)
	parameters := &enableParameters{version: parametersVersion, filters: descriptor, filterCount: 1}
	return code(enableTrace, session, uintptr(unsafe.Pointer(&s.provider)), enableProvider, uintptr(s.cfg.Level),
		uintptr(s.cfg.Keywords), 0, 0, uintptr(unsafe.Pointer(parameters)))
}

// ids returns the ids of wanted events, as the manifest on this host has them, and those of the Config if that has none.
func (s *Session) ids(d *Decoder) (ids []uint16) {
	list, err := sized(func(b *byte, size *uint32) error {
		return code(enumerateEvents, uintptr(unsafe.Pointer(&s.provider)), uintptr(unsafe.Pointer(b)), uintptr(unsafe.Pointer(size)))
	})
	if err != nil {
		return s.cfg.IDs
	}
	for _, descriptor := range parseDescriptors(list) {
		info, err := sized(func(b *byte, size *uint32) error {
			return code(manifestInfo, uintptr(unsafe.Pointer(&s.provider)), uintptr(unsafe.Pointer(&descriptor)),
				uintptr(unsafe.Pointer(b)), uintptr(unsafe.Pointer(size)))
		})
		id := *(*uint16)(unsafe.Pointer(&descriptor))
		if err == nil && d.Wanted(info) && !slices.Contains(ids, id) && len(ids) < maxFilterIDs {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return s.cfg.IDs
	}
	return ids
}

// process delivers events until the context is done or the session ends.
func (r *reader) process(ctx context.Context, f func([]Event)) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(r)
	file := &traceLogfile{loggerName: r.name, processTraceMode: processRealTime | processEventRecord, eventRecordCallback: callback(), context: r}
	pins.Pin(r.name)
	trace, _, err := openTrace.Call(uintptr(unsafe.Pointer(file)))
	if trace == invalidTrace {
		return fmt.Errorf("OpenTraceW: %w", err)
	}
	defer closeTrace.Call(trace)
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // ends with the goroutine: ETW may have set its priority
		ended <- code(processTrace, uintptr(unsafe.Pointer(&trace)), 1, 0, 0)
	}()
	drained := make(chan struct{})
	draining, drain := context.WithCancel(context.Background())
	go func() {
		defer close(drained)
		r.queue.Drain(draining, f)
	}()
	err = r.wait(ctx, ended)
	drain()
	<-drained
	return errors.Join(err, r.failed)
}

// wait reads the number of lost events until the session ends. It ends it when the context is done, and after a
// flood.
func (r *reader) wait(ctx context.Context, ended <-chan error) error {
	ticker := time.NewTicker(pollLost)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			if err == nil && ctx.Err() == nil {
				err = errors.New("the session has ended: another process may have stopped it")
			}
			return err
		case <-ticker.C:
			r.queryLost()
		case <-r.flooded:
			return r.end(ended)
		case <-ctx.Done():
			return r.end(ended)
		}
	}
}

// end stops the session and waits until ProcessTrace has delivered what was recorded.
func (r *reader) end(ended <-chan error) error {
	r.queryLost()
	if err := stop(r.name); err != nil {
		return err // CloseTrace makes ProcessTrace return
	}
	return <-ended
}

// queryLost notes what Windows has lost since the session began.
func (r *reader) queryLost() {
	p := newProperties()
	if code(controlTrace, 0, uintptr(unsafe.Pointer(r.name)), uintptr(unsafe.Pointer(p)), controlQuery) == nil {
		r.unread.Store(uint64(p.eventsLost) + uint64(p.realTimeBuffersLost))
	}
}

// callback returns what ETW calls for each event. Windows has few of them in a process, and none is ever freed.
var callback = sync.OnceValue(func() uintptr {
	return windows.NewCallback(func(e *eventRecord) uintptr {
		if e.userContext != nil && e.userContext.failed == nil {
			e.userContext.take(e)
		}
		return 0
	})
})

// take decodes an event.
func (r *reader) take(e *eventRecord) {
	raw := Raw{ID: e.descriptor.id, Version: e.descriptor.version, Time: time.Unix(0, (*windows.Filetime)(unsafe.Pointer(&e.timeStamp)).Nanoseconds())}
	if e.userData != nil {
		raw.Data = unsafe.Slice(e.userData, e.userDataLength)
	}
	raw.Describe = func() ([]byte, error) {
		return sized(func(b *byte, size *uint32) error {
			return code(eventInfo, uintptr(unsafe.Pointer(e)), 0, 0, uintptr(unsafe.Pointer(b)), uintptr(unsafe.Pointer(size)))
		})
	}
	raw.Map = func(name string) ([]byte, error) {
		text, err := windows.UTF16PtrFromString(name)
		if err != nil {
			return nil, err
		}
		return sized(func(b *byte, size *uint32) error {
			return code(mapInfo, uintptr(unsafe.Pointer(e)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(b)), uintptr(unsafe.Pointer(size)))
		})
	}
	decoded, ok, err := r.decoder.Decode(raw)
	switch {
	case errors.Is(err, ErrFlood):
		r.failed = err
		close(r.flooded)
	case err != nil:
		r.undecoded.Add(1)
	case ok:
		r.queue.Put(decoded)
	}
}

// sized calls a procedure of tdh.dll with a buffer that is large enough, up to maxInfo.
func sized(call func(b *byte, size *uint32) error) ([]byte, error) {
	b := make([]byte, 4096)
	size := uint32(len(b))
	err := call(&b[0], &size)
	if errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) && size <= maxInfo {
		b = make([]byte, size)
		err = call(&b[0], &size)
	}
	if err != nil {
		return nil, err
	}
	return b[:min(int(size), len(b))], nil
}

var (
	advapi32     = windows.NewLazySystemDLL("advapi32.dll")
	startTrace   = advapi32.NewProc("StartTraceW")
	controlTrace = advapi32.NewProc("ControlTraceW")
	enableTrace  = advapi32.NewProc("EnableTraceEx2")
	openTrace    = advapi32.NewProc("OpenTraceW")
	processTrace = advapi32.NewProc("ProcessTrace")
	closeTrace   = advapi32.NewProc("CloseTrace")

	tdh             = windows.NewLazySystemDLL("tdh.dll")
	eventInfo       = tdh.NewProc("TdhGetEventInformation")
	mapInfo         = tdh.NewProc("TdhGetEventMapInformation")
	enumerateEvents = tdh.NewProc("TdhEnumerateManifestProviderEvents")
	manifestInfo    = tdh.NewProc("TdhGetManifestEventInformation")
)

// load finds all procedures.
func load() error {
	for _, p := range []*windows.LazyProc{startTrace, controlTrace, enableTrace, openTrace, processTrace, closeTrace,
		eventInfo, mapInfo, enumerateEvents, manifestInfo} {
		if err := p.Find(); err != nil {
			return err
		}
	}
	return nil
}

// code calls a procedure that returns an error code. Pointers among the arguments stay valid during the call.
//
//go:uintptrescapes
func code(p *windows.LazyProc, args ...uintptr) error {
	if c, _, _ := p.Call(args...); c != 0 {
		return fmt.Errorf("%s: %w", p.Name, windows.Errno(c))
	}
	return nil
}
