// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// start is an attachment that the data path makes concurrently with the loop.
type start struct {
	// waiters are the ADDs that wait for it.
	waiters []*addition
	// unwanted is true if the attachment is to be removed as soon as it is made.
	unwanted bool
	finish   func(context.Context) (dataplane.Attachment, error)
	cancel   context.CancelFunc
}

// giveUp answers the waiting ADDs. The attachment is removed as soon as it is made.
func (s *start) giveUp(err error) {
	for _, a := range s.waiters {
		a.fail(err)
	}
	s.waiters, s.unwanted = nil, true
}

// mustQueue reports whether an ADD must wait: the data path already makes as many attachments as it
// can, or one of the same endpoint that is unwanted.
func (l *loop) mustQueue(a *addition) bool {
	s, ok := l.backend.(dataplane.Starter)
	if !ok {
		return false
	}
	e := l.entries[a.id]
	switch {
	case e != nil && e.start != nil:
		return e.start.unwanted
	case e != nil && e.attached && !e.leaving:
		return false
	}
	return l.starts >= s.Starts()
}

// start lets the data path make an attachment. The context bounds that; cancel releases it.
func (l *loop) start(ctx context.Context, cancel context.CancelFunc, s dataplane.Starter, e *entry, a *addition) (*entry, error) {
	l.step("add.attach")
	finish, err := s.StartEndpoint(ctx, l.spec(e), func() {
		select {
		case l.agent.requests <- func(l *loop) { l.finishStart(e) }:
		case <-l.agent.done:
		}
	})
	if err != nil {
		cancel()
		l.rollBack(e)
		return nil, dataPathError(err, "attach pod %s", a.pod())
	}
	e.start = &start{waiters: []*addition{a}, finish: finish, cancel: cancel}
	l.starts++
	return e, nil
}

// finishStart completes an attachment that was made concurrently with the loop. The next turn puts the policy of all
// such attachments in force by one Apply.
func (l *loop) finishStart(e *entry) {
	s := e.start
	e.start = nil
	l.starts--
	defer s.cancel()
	ctx, cancel := l.opContext()
	defer cancel()
	l.step("add.finish")
	attachment, err := s.finish(ctx)
	if err != nil || s.unwanted { // the ADDs of an unwanted one are answered
		l.rollBack(e)
		if err != nil {
			s.giveUp(dataPathError(err, "attach pod %s", e.Pod()))
		}
		return
	}
	e.attachment, e.attached = attachment, true
	l.started = append(l.started, &attachedAdd{entry: e, waiters: s.waiters})
}
