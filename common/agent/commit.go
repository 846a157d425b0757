// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/isthmus-net/isthmus/common/cniapi"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// commit puts the policy of attached endpoints in force and answers for them.
func (l *loop) commit(batch []*joining) {
	if len(batch) == 0 {
		return
	}
	var entries []*entry
	applied := true
	for _, j := range batch {
		j.exposed = true // from now on it may be seen
		entries = append(entries, j.entry)
		applied = applied && j.State == endpoint.Ready && l.enforced.covered[j.ID()]
	}
	var err error
	if !applied {
		err = l.enforce(entries)
	}
	if err != nil && len(batch) > 1 && dataplane.Concerns(err, "") {
		// One of them may be what cannot be applied: find the others a place.
		for i := range batch {
			l.commit(batch[i : i+1])
		}
		return
	}
	for _, j := range batch {
		l.finish(j, err)
	}
}

// finish records that an endpoint is ready and answers, or rolls it back.
func (l *loop) finish(j *joining, applied error) {
	if err := l.settle(j, applied); err != nil {
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

func (l *loop) settle(j *joining, applied error) error {
	if dataplane.Concerns(applied, j.ID()) {
		if j.State == endpoint.Adding {
			l.rollBack(j.entry)
		}
		return dataPathError(applied, "put the policy of pod %s in force", j.Pod())
	}
	if !l.enforced.covered[j.ID()] {
		// The State does not name it: its pod went or was replaced meanwhile.
		if j.State == endpoint.Adding {
			l.rollBack(j.entry)
		}
		return refuse(CodeTryAgain, "the runtime will try again", "pod %s was replaced by another sandbox or pod", j.Pod())
	}
	if j.State == endpoint.Ready {
		return nil
	}
	ready := j.Record
	ready.State = endpoint.Ready
	l.step("add.ready")
	if err := l.store.Put(ready); err != nil {
		l.rollBack(j.entry)
		return blame(CodeIO, err, "record pod %s", j.Pod())
	}
	j.Record = ready
	l.log.Info("pod is attached", "pod", j.Pod(), "endpoint", j.ID(), "addresses", join(j.IPs))
	if why := l.behind(); why != "" {
		l.log.Warn("the policy of the new pod is the last that is known; it may be out of date", "pod", j.Pod(), "why", why)
	}
	return nil
}

// answer tells the plugin what Add made.
func answer(e *entry) *cniapi.AddResponse {
	r := &cniapi.AddResponse{HostIfName: e.attachment.HostIfName, HostMac: e.attachment.HostMAC.String(),
		Mac: e.attachment.MAC.String(), Mtu: int32(e.attachment.MTU)}
	for _, p := range e.attachment.Addresses {
		r.Addresses = append(r.Addresses, p.String())
	}
	for _, g := range e.attachment.Gateways {
		r.Gateways = append(r.Gateways, g.String())
	}
	return r
}

// rollBack undoes an attachment that was not answered for. What cannot be
// undone now is tried again later.
func (l *loop) rollBack(e *entry) {
	if err := l.drop(e); err != nil {
		l.log.Error("undo attachment", "endpoint", e.ID(), "pod", e.Pod(), "error", err)
	}
}

// drop removes an endpoint, whatever its state, from the data path and then
// from the records. After an error the entry stays, with its addresses, no
// State names it, and repair tries again. The error is an *Error.
func (l *loop) drop(e *entry) error { return l.dropAll([]*entry{e})[0] }

// dropAll does so with several endpoints, and gives an error or nil for each.
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

// dropped brings the records to what became of the attachment.
func (l *loop) dropped(e *entry, detached error) error {
	if detached != nil {
		return dataPathError(detached, "detach pod %s", e.Pod())
	}
	e.attached = false
	if err := l.forget(e); err != nil {
		return blame(CodeIO, err, "record that pod %s is gone", e.Pod())
	}
	return nil
}

// forget removes the record of an endpoint that is detached, or turns it into a
// tombstone while its addresses are in quarantine.
func (l *loop) forget(e *entry) error {
	now := timeNow()
	if e.exposed && l.cfg.Quarantine > 0 {
		gone := e.Tombstone(now)
		l.step("drop.tombstone")
		err := l.store.Release(gone)
		if errors.Is(err, endpoint.ErrNoTombstone) {
			// The entry is in its place, for as long as this agent runs.
			l.log.Warn("the quarantine of a pod's addresses is not on disk, a restart of the agent forgets it", "pod", e.Pod(), "addresses", join(e.IPs), "error", err)
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

// timeNow is the wall clock, as records keep it.
func timeNow() time.Time { return time.Now().UTC().Round(0) }
