// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// Settle waits until every agent enforces the current manifests. It shows that by a namespace without pods, which it
// writes and removes. After an agent has taken both changes in, its objects were read after the last change of the
// caller; policy is in force once they are applied.
func (c *Cluster) Settle(ctx context.Context) error {
	if c.Manifests.apply != nil {
		return errors.New("the agents follow an API server, not the manifests")
	}
	const marker = "settle"
	if err := c.Manifests.Put(marker, "{apiVersion: v1, kind: Namespace, metadata: {name: settle}}"); err != nil {
		return err
	}
	if err := c.await(ctx, time.Now(), func(s state) bool { return s.taken.After(s.asked) }); err != nil {
		return err
	}
	if err := c.Manifests.Drop(marker); err != nil {
		return err
	}
	return c.await(ctx, time.Now(), func(s state) bool { return s.taken.After(s.asked) && s.applied.After(s.taken) })
}

// state is what an agent says about the objects that it has.
type state struct {
	// asked is since when the objects must have been taken in.
	asked time.Time
	// taken is when the agent took them in, applied when it last applied a policy state.
	taken, applied time.Time
	// objects are their numbers by kind.
	objects map[string]int
	// verdicts are nil if the data path does not count all new flows. They were read at the time counted.
	verdicts *Account
	counted  time.Time
}

// await waits until all agents have as many objects of each kind as the manifests, none has a problem, and each state
// is good.
func (c *Cluster) await(ctx context.Context, asked time.Time, good func(state) bool) error {
	objects, err := c.Manifests.Objects(ctx)
	if err != nil {
		return err
	}
	s := objects.Snapshot()
	want := map[string]int{"namespace": s.Namespaces.Len(), "node": s.Nodes.Len(), "pod": s.Pods.Len(), "policy": s.Policies.Len(), "denylist": s.DenyLists.Len()}
	for _, n := range c.Nodes {
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			got, err := n.state()
			got.asked = asked
			different := ""
			for kind, number := range want {
				if got.objects[kind] != number {
					different += fmt.Sprintf(" %d objects of kind %s instead of %d;", got.objects[kind], kind, number)
				}
			}
			var serious []string
			if err == nil && different == "" && good(got) {
				status, problem := n.Status(ctx)
				serious = slices.DeleteFunc(status.GetProblems(), func(p string) bool { return strings.HasPrefix(p, "warning: ") })
				if err = problem; err == nil && len(serious) == 0 {
					break
				}
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("node %s does not enforce the manifests after %s:%s taken in %s, applied %s, %v %q", n.Name, patience, different, got.taken, got.applied, err, serious)
			}
		}
	}
	return nil
}

// state reads the metrics of an agent.
func (n *Node) state() (s state, err error) {
	body, status, err := n.Get("/metrics")
	if err != nil || status != 200 {
		return s, fmt.Errorf("metrics: status %d, %w", status, err)
	}
	s.objects = make(map[string]int)
	var verdicts Account
	found := 0
	for line := range strings.Lines(body) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue // a comment
		}
		at := time.UnixMicro(int64(value * 1e6))
		for _, d := range model.Directions {
			for _, v := range []model.Verdict{model.Deny, model.Allow} {
				if name == fmt.Sprintf("isthmus_verdicts_total{direction=%q,verdict=%q}", d, v) {
					verdicts[d][v] = uint64(value)
					found++
				}
			}
		}
		switch kind, of := strings.CutPrefix(name, `isthmus_snapshot_objects{kind="`); {
		case of:
			s.objects[strings.TrimSuffix(kind, `"}`)] = int(value)
		case name == "isthmus_snapshot_timestamp_seconds":
			s.taken = at
		case name == "isthmus_last_apply_timestamp_seconds":
			s.applied = at
		case name == "isthmus_counters_timestamp_seconds":
			s.counted = at
		}
	}
	if found == 4 {
		s.verdicts = &verdicts
	}
	return s, nil
}
