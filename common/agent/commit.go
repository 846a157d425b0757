// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// finishAdds puts the policy of attached endpoints in force and answers their ADDs.
func (l *loop) finishAdds(batch []*attachedAdd) {
	if len(batch) == 0 {
		return
	}
	var entries []*entry
	applied := true
	for _, j := range batch {
		j.exposed = true // other pods may see its addresses from now on
		entries = append(entries, j.entry)
		applied = applied && j.State == endpoint.Ready && l.enforced.covered[j.ID()]
	}
	var err error
	if !applied {
		err = l.enforce(entries)
	}
	if err != nil && len(batch) > 1 && dataplane.Concerns(err, "") {
		// One endpoint of the batch may be the cause of the error: apply each by itself.
		for i := range batch {
			l.finishAdds(batch[i : i+1])
		}
		return
	}
	for _, j := range batch {
		l.finishAdd(j, err)
	}
}

// finishAdd records that an endpoint is ready and answers its ADDs, or rolls the attachment back.
func (l *loop) finishAdd(j *attachedAdd, applied error) {
	if err := l.makeReady(j, applied); err != nil {
		for _, a := range j.waiters {
			a.fail(err)
		}
		return
	}
	l.step("add.answer")
	for _, a := range j.waiters {
		a.reply <- addReply{response: answer(j.entry)}
	}
}

func (l *loop) makeReady(j *attachedAdd, applied error) error {
	if dataplane.Concerns(applied, j.ID()) {
		if j.State == endpoint.Adding {
			l.rollBack(j.entry)
		}
		return dataPathError(applied, "apply the policy of pod %s", j.Pod())
	}
	if !l.enforced.covered[j.ID()] {
		// The State does not contain the endpoint: its pod was deleted or replaced meanwhile.
		if j.State == endpoint.Adding {
			l.rollBack(j.entry)
		}
		return refuse(CodeTryAgain, "the runtime will try again", "pod %s was replaced by another sandbox or pod", j.Pod())
	}
	if j.State == endpoint.Ready {
		return nil
	}
	ready := j.Record
	ready.State, ready.NetNSID = endpoint.Ready, j.attachment.NetNSID
	l.step("add.ready")
	if err := l.store.Put(ready); err != nil {
		l.rollBack(j.entry)
		return blame(CodeIO, err, "record pod %s", j.Pod())
	}
	j.Record = ready
	l.log.Info("pod is attached", "pod", j.Pod(), "endpoint", j.ID(), "addresses", join(j.IPs))
	if why := l.behind(); why != "" {
		l.log.Warn("the policy of the new pod may be out of date", "pod", j.Pod(), "why", why)
	}
	return nil
}

// answer builds the response to an ADD.
func answer(e *entry) *cniframe.AddResponse {
	r := &cniframe.AddResponse{HostIfName: e.attachment.HostIfName, HostMAC: e.attachment.HostMAC.String(),
		MAC: e.attachment.MAC.String(), MTU: int32(e.attachment.MTU)}
	for _, p := range e.attachment.Addresses {
		r.Addresses = append(r.Addresses, p.String())
	}
	for _, g := range e.attachment.Gateways {
		r.Gateways = append(r.Gateways, g.String())
	}
	return r
}

// rollBack removes an attachment whose ADD was not answered. repair retries a removal that fails.
func (l *loop) rollBack(e *entry) {
	if err := l.drop(e); err != nil {
		l.log.Error("roll back attachment", "endpoint", e.ID(), "pod", e.Pod(), "error", err)
	}
}

// drop removes an endpoint in any state from the data path and then from the records. After an error the
// entry keeps its addresses, no State contains it, and repair retries. The error is an *Error.
func (l *loop) drop(e *entry) error { return l.dropAll([]*entry{e})[0] }

// dropAll removes several endpoints and returns an error or nil for each, in the same order. See drop for
// what remains after an error.
func (l *loop) dropAll(all []*entry) []error {
	var ids []model.EndpointID
	for _, e := range all {
		e.leaving = true
		if l.enforced.covered[e.ID()] || dataplane.Concerns(l.enforced.failed, e.ID()) {
			delete(l.enforced.covered, e.ID())
			l.enforced.changed(time.Now(), l.cfg)
		}
		l.step("drop.detach")
		ids = append(ids, e.ID())
	}
	errs := l.detachAll(ids)
	for i, e := range all {
		errs[i] = l.dropped(e, errs[i])
		e.problem = errs[i]
		if errs[i] != nil {
			l.repairs.later(l.cfg)
		}
	}
	return errs
}

// dropped updates the records after an attempt to detach an endpoint.
func (l *loop) dropped(e *entry, detached error) error {
	if detached != nil {
		return dataPathError(detached, "detach pod %s", e.Pod())
	}
	e.attached = false
	if err := l.forget(e); err != nil {
		return blame(CodeIO, err, "record that pod %s is detached", e.Pod())
	}
	return nil
}

// forget removes the record of a detached endpoint. While its addresses are in quarantine it replaces the
// record with a tombstone.
func (l *loop) forget(e *entry) error {
	now := timeNow()
	if e.exposed && l.cfg.Quarantine > 0 {
		gone := e.Tombstone(now)
		l.step("drop.tombstone")
		err := l.store.Release(gone)
		if errors.Is(err, endpoint.ErrNoTombstone) {
			// The entry replaces the tombstone for as long as this agent runs.
			l.log.Warn("cannot save the quarantine of a pod's addresses; a restart of the agent ends it", "pod", e.Pod(), "addresses", join(e.IPs), "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
		e.Record, e.leaving = gone, false
		l.giveBack(e, now)
		l.repairs.purgeAt(now.Add(l.cfg.Quarantine))
		return nil
	}
	l.step("drop.record")
	if err := l.store.Remove(e.ID()); err != nil {
		return err
	}
	delete(l.entries, e.ID())
	l.giveBack(e, now)
	return nil
}

// timeNow returns the wall clock in UTC without a monotonic reading, as records store it.
func timeNow() time.Time { return time.Now().UTC().Round(0) }
