// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/isthmus-net/isthmus/windows/etw"
)

// Source is a session for a program in this process: an etw.Source that has no Windows below its decoder.
type Source struct {
	host *Host
	cfg  etw.Config
	lost atomic.Uint64
}

var _ etw.Source = (*Source)(nil)

// Source returns a session that is not started.
func (h *Host) Source(c etw.Config) *Source { return &Source{host: h, cfg: c} }

// Lost implements etw.Source.
func (s *Source) Lost() uint64 { return s.lost.Load() }

// Read implements etw.Source.
func (s *Source) Read(ctx context.Context, f func([]etw.Event)) error {
	_ = s.host.Stop(s.cfg.Name) // of an earlier process
	if err := s.host.Start(s.cfg.Name); err != nil {
		return err
	}
	defer s.host.Stop(s.cfg.Name)
	d := etw.NewDecoder(s.cfg.Wanted)
	var ids []uint16
	for id := range manifest {
		if d.Wanted(Info(id)) {
			ids = append(ids, id)
		}
	}
	reader, err := s.host.Open(s.cfg.Name)
	if err != nil {
		return err
	}
	if err := s.host.Enable(s.cfg.Name, ids); err != nil {
		return err
	}
	for {
		records, more := reader.Next(ctx)
		list := make([]etw.Event, 0, len(records))
		for _, r := range records {
			e, ok, err := d.Decode(s.raw(r))
			if errors.Is(err, etw.ErrFlood) {
				return err
			}
			if err != nil {
				s.lost.Add(1)
			}
			if ok {
				list = append(list, e)
			}
		}
		if lost, err := s.host.Lost(s.cfg.Name); err == nil {
			s.lost.Store(max(s.lost.Load(), uint64(lost)))
		}
		if len(list) > 0 {
			f(list)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !more:
			return errors.New("the session has ended")
		}
	}
}

// raw returns an event as ETW delivers it.
func (s *Source) raw(r Record) etw.Raw {
	found := func(b []byte) ([]byte, error) {
		if b == nil {
			return nil, errors.New("not in the manifest")
		}
		return b, nil
	}
	return etw.Raw{ID: r.ID, Time: r.Time, Data: r.Data, Describe: func() ([]byte, error) { return found(Info(r.ID)) },
		Map: func(name string) ([]byte, error) { return found(s.host.Map(name)) }}
}
