// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// addition is an ADD that has no answer yet.
type addition struct {
	ctx context.Context
	id  model.EndpointID
	req *cniframe.AddRequest
	// hostPorts, bandwidth and dns are the validated values of req.
	hostPorts []model.HostPort
	bandwidth model.Bandwidth
	dns       model.DNS
	// foreign are the addresses of an interface that another CNI plugin made, the first of each family; nil if the agent
	// makes it. further are the others.
	foreign, further []netip.Addr
	// deadline is the time until which the agent waits for the pod to appear in a snapshot.
	deadline time.Time
	// queued is true while the pod is known and only waits until others are attached.
	queued bool
	reply  chan addReply // capacity 1
}

type addReply struct {
	response *cniframe.AddResponse
	err      error
}

func (a *addition) fail(err error) { a.reply <- addReply{err: err} }

func (a *addition) pod() model.PodID {
	return model.PodID{Namespace: a.req.PodNamespace, Name: a.req.PodName}
}

// Add attaches a pod and returns when its policy is in force. The error is an *Error or a context error.
func (a *Agent) Add(ctx context.Context, req *cniframe.AddRequest) (_ *cniframe.AddResponse, err error) {
	defer a.served("ADD", time.Now(), &err)
	id, err := checkAdd(req)
	if err != nil {
		return nil, err
	}
	foreign, further, err := a.checkMode(req)
	if err != nil {
		return nil, err
	}
	ports, err := hostPorts(req)
	if err != nil {
		return nil, err
	}
	limits, err := bandwidth(req.Bandwidth)
	if err != nil {
		return nil, err
	}
	dns, err := resolver(req.DNS)
	if err != nil {
		return nil, err
	}
	add := &addition{ctx: ctx, id: id, req: req, hostPorts: ports, bandwidth: limits, dns: dns, foreign: foreign, further: further,
		deadline: time.Now().Add(a.cfg.AddWait), reply: make(chan addReply, 1)}
	if d, ok := ctx.Deadline(); ok {
		// Answer with the reason before the caller gives up.
		if d = d.Add(-time.Until(d) / 10); d.Before(add.deadline) {
			add.deadline = d
		}
	}
	err = a.do(ctx, func(l *loop) {
		if l.stopping {
			add.fail(errStopped)
			return
		}
		l.pending = append(l.pending, add)
	})
	if err != nil {
		return nil, err
	}
	select {
	case r := <-add.reply:
		return r.response, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.done:
		return nil, errStopped
	}
}

// attachedAdd is an endpoint that is attached and waits for its policy, with the ADDs that wait for it.
type attachedAdd struct {
	*entry
	waiters []*addition
}

// processAdds attaches the pods that are in the snapshot and puts their policy in force.
func (l *loop) processAdds() {
	batch := l.started
	l.started = nil
	if len(l.pending)+len(batch) == 0 {
		return
	}
	var waiting []*addition
	for _, a := range l.pending {
		if a.ctx.Err() != nil {
			continue // the caller no longer waits for the answer
		}
		known, err := l.checkPod(a)
		a.queued = known && l.mustQueue(a)
		if err == nil && (!known || a.queued) {
			waiting = append(waiting, a)
			continue
		}
		if err == nil {
			batch, err = l.attachPod(batch, a)
		}
		if err != nil {
			a.fail(err)
		}
	}
	l.pending = waiting
	l.finishAdds(batch)
}

// checkPod reports whether the pod of an ADD is in the snapshot. It returns an error for a pod that can
// never be attached.
func (l *loop) checkPod(a *addition) (known bool, err error) {
	if l.snapshot == nil {
		return false, nil
	}
	pod, ok := l.snapshot.Pods.Get(a.pod())
	switch {
	case !ok, !samePod(a.req.PodUID, pod.UID), pod.Node != "" && pod.Node != l.cfg.NodeName, pod.Finished:
		return false, nil // the snapshot may be stale
	case pod.HostNetwork:
		return false, refuse(CodeRefused, "it uses its node's addresses and needs no interface", "pod %s uses the host network", a.pod())
	}
	return true, nil
}

// expire answers the ADDs whose deadline has passed.
func (l *loop) expire() {
	now := time.Now()
	l.pending = slices.DeleteFunc(l.pending, func(a *addition) bool {
		if (a.queued || now.Before(a.deadline)) && a.ctx.Err() == nil {
			return false
		}
		a.fail(l.whyUnknown(a))
		return true
	})
}

// whyUnknown returns the error for an ADD whose pod did not become known in time.
func (l *loop) whyUnknown(a *addition) error {
	remedy := "the runtime will try again"
	if why := l.behind(); why != "" {
		remedy += "; the agent's view of the cluster may be out of date: " + why
	}
	if l.snapshot == nil {
		return refuse(CodeTryAgain, remedy, "pod %s is not attached: the state of the cluster is not known yet", a.pod())
	}
	if l.backend == nil {
		problem, remedy := l.whyNotOpen()
		return refuse(CodeTryAgain, remedy, "pod %s is not attached: %s", a.pod(), problem)
	}
	pod, ok := l.snapshot.Pods.Get(a.pod())
	switch {
	case !ok:
		return refuse(CodeTryAgain, remedy, "pod %s is not known to the agent", a.pod())
	case !samePod(a.req.PodUID, pod.UID):
		return refuse(CodeTryAgain, remedy, "pod %s is known with UID %s, not %s", a.pod(), pod.UID, a.req.PodUID)
	case pod.Node != "" && pod.Node != l.cfg.NodeName:
		return refuse(CodeTryAgain, remedy, "pod %s is bound to node %s, not to %s", a.pod(), pod.Node, l.cfg.NodeName)
	}
	return refuse(CodeTryAgain, remedy, "pod %s has finished", a.pod())
}

// behind returns why the snapshot may be out of date, or "".
func (l *loop) behind() string {
	if l.cfg.SourceBehind == nil {
		return ""
	}
	return l.cfg.SourceBehind()
}

// attachPod adds the endpoint of an ADD to the batch and attaches it if necessary.
func (l *loop) attachPod(batch []*attachedAdd, a *addition) ([]*attachedAdd, error) {
	if err := l.checkOthers(a); err != nil {
		return batch, err
	}
	e := l.entries[a.id]
	if e != nil && e.State != endpoint.Released && !e.leaving {
		if err := conflict(e, a); err != nil {
			return batch, err
		}
		if e.start != nil {
			e.start.waiters = append(e.start.waiters, a)
			return batch, nil
		}
		for _, j := range batch {
			if j.entry == e {
				j.waiters = append(j.waiters, a)
				return batch, nil
			}
		}
		if !e.attached || e.problem != nil {
			l.adopt(e)
		}
		if e.problem != nil {
			return batch, dataPathError(e.problem, "reattach pod %s", a.pod())
		}
		return append(batch, &attachedAdd{entry: e, waiters: []*addition{a}}), nil
	}
	if e != nil && e.leaving {
		// Finish the removal that failed earlier.
		if err := l.drop(e); err != nil {
			return batch, err
		}
	}
	e, err := l.attach(a)
	if err != nil || e.start != nil {
		return batch, err
	}
	return append(batch, &attachedAdd{entry: e, waiters: []*addition{a}}), nil
}

// conflict returns an error if an ADD differs from the existing attachment.
func conflict(e *entry, a *addition) error {
	const remedy = "call DEL for it first"
	switch {
	case e.Pod() != a.pod():
		return refuse(CodeConflict, remedy, "attachment %s belongs to pod %s, not to %s", a.id, e.Pod(), a.pod())
	case e.UID != a.req.PodUID:
		return refuse(CodeConflict, remedy, "attachment %s belongs to pod %s with UID %q, not %q", a.id, e.Pod(), e.UID, a.req.PodUID)
	case a.foreign != nil && !(slices.Equal(a.foreign, e.IPs) && slices.Equal(a.further, e.Further)):
		return refuse(CodeConflict, remedy, "attachment %s of pod %s has the addresses %s, not %s", a.id, e.Pod(),
			join(slices.Concat(e.IPs, e.Further)), join(slices.Concat(a.foreign, a.further)))
	case e.NetNS != a.req.Netns:
		return refuse(CodeConflict, remedy, "attachment %s of pod %s is in %s, not in %s", a.id, e.Pod(), e.NetNS, a.req.Netns)
	}
	return nil
}

// attach creates a new attachment. It takes addresses, writes the record of the intent and calls the data
// path, which denies the endpoint all traffic. A data path that can do so makes the attachment concurrently with the
// loop. After an error nothing remains.
func (l *loop) attach(a *addition) (*entry, error) {
	for _, other := range l.entries {
		if other.ContainerID == a.req.Attachment.ContainerID && other.State != endpoint.Released {
			return nil, refuse(CodeRefused, "attach one interface per pod", "pod %s already has interface %s in container %s", other.Pod(),
				other.IfName, other.ContainerID)
		}
	}
	if err := l.checkHostPorts(a); err != nil {
		return nil, err
	}
	if err := l.checkBandwidth(a); err != nil {
		return nil, err
	}
	ips, err := l.allocate(a)
	if err != nil {
		return nil, err
	}
	e := &entry{Record: endpoint.Record{State: endpoint.Adding, Kind: l.kind(), ContainerID: a.req.Attachment.ContainerID,
		IfName: a.req.Attachment.IfName, NetNS: a.req.Netns, Network: a.req.Network, Namespace: a.req.PodNamespace,
		Name: a.req.PodName, UID: a.req.PodUID, IPs: ips, Further: a.further, HostPorts: a.hostPorts, Bandwidth: a.bandwidth, Created: timeNow()}}
	if l.features.DNS {
		e.DNS = a.dns
	}
	if a.req.Foreign != nil && len(a.req.Foreign.Others) > 0 {
		e.others = names(a.req.Foreign.Others)
		l.log.Warn("policy does not see packets of further interfaces of an observed pod", "pod", e.Pod(), "interfaces", e.others)
	}
	l.step("add.intent")
	if err := l.store.Put(e.Record); err != nil {
		l.giveBack(e, timeNow())
		return nil, blame(CodeIO, err, "record pod %s", a.pod())
	}
	l.entries[a.id] = e
	ctx, cancel := l.opContext()
	if d, ok := a.ctx.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, d)
	}
	if s, ok := l.backend.(dataplane.Starter); ok {
		return l.start(ctx, cancel, s, e, a)
	}
	defer cancel()
	l.step("add.attach")
	e.attachment, err = l.backend.AddEndpoint(ctx, l.spec(e))
	if err != nil {
		l.rollBack(e)
		return nil, dataPathError(err, "attach pod %s", a.pod())
	}
	e.attached = true
	if err := sameMAC(e, a.req.Foreign, CodeConfig); err != nil {
		l.rollBack(e)
		return nil, err
	}
	return e, nil
}

// dataPathError wraps an error of the Backend with its CNI error code.
func dataPathError(err error, format string, args ...any) error {
	switch {
	case errors.Is(err, dataplane.ErrNoNetNS):
		return blame(CodeEnv, fmt.Errorf("CNI_NETNS: %w", err), format, args...)
	case errors.Is(err, dataplane.ErrInterfaceKind):
		return blame(CodeConfig, err, format, args...)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return blame(CodeTryAgain, err, format, args...)
	}
	return blame(CodeDataPath, err, format, args...)
}
