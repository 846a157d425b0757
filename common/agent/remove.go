// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// removal is a DEL that has no answer yet.
type removal struct {
	id    model.EndpointID
	reply chan error // capacity 1
}

// Del removes an attachment. A missing attachment is not an error. The error is an *Error or a context
// error.
func (a *Agent) Del(ctx context.Context, req *cniframe.DelRequest) (err error) {
	defer a.served("DEL", time.Now(), &err)
	id, err := attachmentID(req.Attachment)
	if err != nil {
		return err
	}
	r := removal{id, make(chan error, 1)}
	if err := a.do(ctx, func(l *loop) { l.takeRemoval(r) }); err != nil {
		return err
	}
	select {
	case err := <-r.reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-a.done:
		return errStopped
	}
}

// takeRemoval fails the waiting ADDs of the same attachment and queues the DEL for processDels.
func (l *loop) takeRemoval(r removal) {
	l.pending = slices.DeleteFunc(l.pending, func(a *addition) bool {
		if a.id != r.id {
			return false
		}
		a.fail(refuse(CodeTryAgain, "call ADD again if the pod still exists", "DEL of %s came before pod %s was attached", r.id, a.pod()))
		return true
	})
	if e := l.entries[r.id]; e != nil && e.start != nil {
		e.start.giveUp(refuse(CodeTryAgain, "call ADD again if the pod still exists", "DEL of %s came before pod %s was attached", r.id, e.Pod()))
	}
	if l.refused() != "" { // no endpoint exists, and pods of the other network must end
		r.reply <- nil
		return
	}
	if l.backend == nil {
		r.reply <- l.errNotOpen()
		return
	}
	l.removals = append(l.removals, r)
}

// processDels removes the attachments of the DELs since the last turn. It removes them in one batch,
// because the kernel takes time for each single removal.
func (l *loop) processDels() {
	var known []*entry
	of := make(map[model.EndpointID][]removal)
	var others []model.EndpointID // the data path may still have these
	var later []removal           // those of attachments that are not made yet
	for _, r := range l.removals {
		if e := l.entries[r.id]; e != nil && e.start != nil {
			later = append(later, r)
			continue
		}
		if of[r.id] == nil {
			if e := l.entries[r.id]; e != nil && e.State != endpoint.Released {
				known = append(known, e)
			} else {
				others = append(others, r.id)
			}
		}
		of[r.id] = append(of[r.id], r)
	}
	l.removals = later
	answer := func(id model.EndpointID, err error) {
		for _, r := range of[id] {
			r.reply <- err
		}
	}
	for i, err := range l.dropAll(known) {
		if err == nil {
			l.log.Info("pod is detached", "pod", known[i].Pod(), "endpoint", known[i].ID())
			l.adoptions.claims.Ended(known[i].claimant())
		}
		answer(known[i].ID(), err)
	}
	for _, id := range others {
		l.step("drop.detach")
		err := l.detach(id)
		if err != nil {
			err = dataPathError(err, "detach %s", id)
		}
		answer(id, err)
	}
}

// GC removes every attachment of the network that the request does not list, and attachments without a
// record. It continues after errors. The error is an *Error or a context error.
func (a *Agent) GC(ctx context.Context, req *cniframe.GCRequest) (_ *cniframe.GCResponse, err error) {
	defer a.served("GC", time.Now(), &err)
	valid := make(map[model.EndpointID]bool)
	for _, v := range req.Valid {
		id, err := attachmentID(v)
		if err != nil {
			return nil, err
		}
		valid[id] = true
	}
	var removed []model.EndpointID
	var failed error
	if err := a.do(ctx, func(l *loop) { removed, failed = l.gc(valid, req.Network) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	r := &cniframe.GCResponse{}
	for _, id := range removed {
		r.Removed = append(r.Removed, AttachmentOf(id))
	}
	return r, nil
}

func (l *loop) gc(valid map[model.EndpointID]bool, network string) ([]model.EndpointID, error) {
	if l.backend == nil {
		return nil, l.errNotOpen()
	}
	var removed []model.EndpointID
	var stale []*entry
	for _, e := range l.sorted() {
		other := network != "" && e.Network != "" && e.Network != network
		if e.State == endpoint.Released || valid[e.ID()] || other || e.start != nil || e.adopted() { // the runtime knows of no adopted one
			continue
		}
		l.log.Warn("remove attachment that the runtime does not list", "endpoint", e.ID(), "pod", e.Pod())
		stale = append(stale, e)
	}
	var errs []error
	for i, err := range l.dropAll(stale) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, stale[i].ID())
		if !l.cfg.PolicyOnly { // an interface of another plugin stays
			l.adoptions.claims.Ended(stale[i].claimant())
		}
	}
	more, err := l.removeUnknown()
	if err != nil {
		errs = append(errs, dataPathError(err, "remove attachments without a record"))
	}
	removed = append(removed, more...)
	slices.Sort(removed)
	if len(errs) > 0 {
		return removed, blame(AsError(errs[0]).Code, errors.Join(errs...), "remove %d of the attachments", len(errs))
	}
	return removed, nil
}

// AttachmentOf splits an endpoint id; neither part contains a colon.
func AttachmentOf(id model.EndpointID) cniframe.Attachment {
	container, name, _ := strings.Cut(string(id), ":")
	return cniframe.Attachment{ContainerID: container, IfName: name}
}

// Check fails if the attachment is missing or differs from what Add created. The error is an *Error or a
// context error.
func (a *Agent) Check(ctx context.Context, req *cniframe.CheckRequest) (err error) {
	defer a.served("CHECK", time.Now(), &err)
	id, err := attachmentID(req.Attachment)
	if err != nil {
		return err
	}
	var failed error
	if err := a.do(ctx, func(l *loop) { failed = l.check(id, req) }); err != nil {
		return err
	}
	return failed
}

func (l *loop) check(id model.EndpointID, req *cniframe.CheckRequest) error {
	if l.backend == nil {
		return l.errNotOpen()
	}
	const remedy = "restart the pod"
	e := l.entries[id]
	if e == nil || e.State != endpoint.Ready || e.leaving {
		return refuse(CodeBroken, remedy, "attachment %s does not exist", id)
	}
	if n := req.Netns; n != "" && n != e.NetNS {
		return refuse(CodeBroken, remedy, "attachment %s of pod %s is in %s, not in %s", id, e.Pod(), e.NetNS, n)
	}
	if err := l.agent.sameMode(req.Foreign); err != nil {
		return err
	}
	if err := checkAddresses(e, req.Addresses); err != nil {
		return err
	}
	if err := checkForeign(e, req.Foreign); err != nil {
		return err
	}
	if err := compareBandwidth(e, req.Bandwidth); err != nil {
		return err
	}
	found, problems, err := l.inspect(id)
	switch {
	case err != nil:
		return dataPathError(err, "inspect pod %s", e.Pod())
	case !found:
		return refuse(CodeBroken, remedy, "pod %s is not attached", e.Pod())
	case len(problems) > 0:
		return refuse(CodeBroken, strings.Join(problems, "; "), "the attachment of pod %s is broken", e.Pod())
	case !l.enforced.covered[id]:
		return refuse(CodeBroken, "its policy is not known, or not in force yet", "all traffic to and from pod %s is denied", e.Pod())
	}
	return nil
}

// checkAddresses compares the addresses of a CHECK with those that Add returned.
func checkAddresses(e *entry, want []string) error {
	if len(want) == 0 {
		return nil
	}
	var addrs []netip.Addr
	for _, s := range want {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return refuse(CodeEnv, "pass the addresses of prevResult with their prefix length", "address %q is not valid", shorten(s))
		}
		addrs = append(addrs, p.Addr())
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	if !slices.Equal(addrs, e.IPs) {
		return refuse(CodeBroken, "restart the pod", "pod %s has the addresses %s, not %s", e.Pod(), join(e.IPs), join(addrs))
	}
	return nil
}

// inspect looks up one attachment in the data path.
func (l *loop) inspect(id model.EndpointID) (found bool, problems []string, err error) {
	ctx, cancel := l.opContext()
	defer cancel()
	installed, err := l.backend.Endpoints(ctx)
	if err != nil {
		return false, nil, fmt.Errorf("list attachments: %w", err)
	}
	i := slices.IndexFunc(installed, func(i dataplane.Installed) bool { return i.ID == id })
	if i < 0 {
		return false, nil, nil
	}
	return true, slices.Concat(installed[i].Problems, installed[i].InPod), nil
}
