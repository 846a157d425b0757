// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// waitForEvents bounds a call of Next.etw.
const waitForEvents = time.Second

// etw makes the calls of etw-more.dll, whose arguments are words. Bytes are in hexadecimal digits:
//
//	Start.etw, Stop.etw    SESSION
//	Enable.etw             SESSION and the wanted ids of events
//	Open.etw               SESSION: a handle
//	Next.etw               by a handle: lines ID FILETIME DATA, or "end"
//	Query.etw              SESSION: number of lost events
//	Info.etw               ID: TRACE_EVENT_INFO
//	Map.etw                NAME: EVENT_MAP_INFO
//	Provider.etw           PROVIDER_EVENT_INFO
func (s *Service) etw(c Call, verb string) (Answer, error) {
	host := s.config.Tracing
	words := strings.Fields(c.Args[0])
	if host == nil || len(words) == 0 && verb != "Provider" && verb != "Next" {
		return Answer{}, hns.NewError(c.Op, hns.CodeNotImplemented, "there are no events")
	}
	var text string
	switch verb {
	case "Start":
		return Answer{}, host.Start(words[0])
	case "Stop":
		return Answer{}, host.Stop(words[0])
	case "Enable":
		return Answer{}, enable(host, words)
	case "Open":
		r, err := host.Open(words[0])
		if err != nil {
			return Answer{}, err
		}
		return Answer{Handle: s.readers.add(r)}, nil
	case "Next":
		r := s.readers.get(c.Handle)
		if r == nil {
			return Answer{}, hns.NewError(c.Op, hns.CodeUnexpected, "no such reader")
		}
		text = next(r)
	case "Query":
		lost, err := host.Lost(words[0])
		if err != nil {
			return Answer{}, err
		}
		text = strconv.Itoa(int(lost))
	case "Info":
		id, err := strconv.ParseUint(words[0], 10, 16)
		if err != nil {
			return Answer{}, err
		}
		return digits(c, tracing.Info(uint16(id)))
	case "Map":
		return digits(c, host.Map(words[0]))
	case "Provider":
		return digits(c, tracing.Descriptors())
	default:
		return Answer{}, hns.NewError(c.Op, hns.CodeNotImplemented, "Not implemented")
	}
	return Answer{Output: &text}, nil
}

func enable(host *tracing.Host, words []string) error {
	var ids []uint16
	for _, w := range words[1:] {
		id, err := strconv.ParseUint(w, 10, 16)
		if err != nil {
			return err
		}
		ids = append(ids, uint16(id))
	}
	return host.Enable(words[0], ids)
}

// next waits for events, not for long, so that the client notices its end.
func next(r *tracing.Reader) string {
	ctx, cancel := context.WithTimeout(context.Background(), waitForEvents)
	defer cancel()
	records, more := r.Next(ctx)
	if !more {
		return "end"
	}
	var b strings.Builder
	for _, r := range records {
		// FILETIME counts 100 ns since 1601.
		fmt.Fprintf(&b, "%d %d %s\n", r.ID, r.Time.UnixNano()/100+116444736000000000, hex.EncodeToString(r.Data))
	}
	return b.String()
}

func digits(c Call, b []byte) (Answer, error) {
	if b == nil {
		return Answer{}, hns.NewError(c.Op, codeInterfaceMissing, "Element not found.")
	}
	text := hex.EncodeToString(b)
	return Answer{Output: &text}, nil
}

// readers are the readers of sessions, by handle. That of a process that has ended goes with its session.
type readers struct {
	mu   sync.Mutex
	last uint64
	all  map[uint64]*tracing.Reader
}

func (l *readers) add(r *tracing.Reader) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[uint64]*tracing.Reader)
	}
	l.last++
	l.all[l.last] = r
	return l.last
}

func (l *readers) get(handle uint64) *tracing.Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[handle]
}
