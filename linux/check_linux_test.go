// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// TestCheckFindsPodsWithoutPolicy does every damage after which a pod is not under policy. A check finds
// each without an audit, and the calls that the agent then makes repair it.
func TestCheckFindsPodsWithoutPolicy(t *testing.T) {
	a := newAuditLab(t)
	want := []string{"delete classifiers", "delete clsact", "replace classifier", "set interface down", "delete endpoints"}
	if a.links["tcx"] {
		want = append(want, "detach-from_pod", "detach-to_pod", "replace program of-from_pod", "replace program of-to_pod", "program that lets pass before ours")
	}
	done := 0
	for _, k := range a.kinds() {
		if !slices.Contains(want, k.name) {
			continue
		}
		done++
		if found := a.check(); len(found) > 0 {
			t.Fatalf("before %s: %v", k.name, found)
		}
		var what string
		a.must(a.node.Do(func() (err error) { what, err = k.do(); return err }))
		found := a.check()
		if len(found) == 0 {
			t.Errorf("%s (%s): not found", k.name, what)
			a.repair(a.audit())
			continue
		}
		var drifts []dataplane.Drift
		for _, i := range found {
			if !i.Unenforced || len(i.Problems) == 0 {
				t.Errorf("%s (%s): %+v", k.name, what, i)
			}
			drifts = append(drifts, dataplane.Drift{Object: "endpoint", Endpoint: i.ID})
		}
		a.repair(drifts)
		for _, other := range a.others {
			a.must(other.Close())
		}
		a.others = nil
		if again := a.audit(); len(again) > 0 || len(a.check()) > 0 {
			t.Errorf("%s (%s): not repaired: %v", k.name, what, again)
		}
	}
	if done != len(want) {
		t.Errorf("%d kinds of damage, want %d", done, len(want))
	}
	fmt.Printf("policy check: %d kinds of damage\n", done)
}

func (a *auditLab) check() (found []dataplane.Installed) {
	a.t.Helper()
	a.must(a.node.Do(func() (err error) {
		found, err = a.backend.Check(context.Background())
		return err
	}))
	return found
}

// checkBudget is the maximum CPU time of one check for each pod: 250 pods every 5 s cost at most a
// hundredth of one CPU.
const checkBudget = 200 * time.Microsecond

// TestCheckCost measures a check. It uses the minimum of several runs, because other load also affects CPU
// time.
func TestCheckCost(t *testing.T) {
	l := newLab(t)
	const pods = 10
	for i := range pods {
		l.pod(fmt.Sprint("p", i), byte(11+i))
	}
	l.apply()
	for l.idle() {
	}
	least := time.Hour
	for range 20 {
		l.must(l.node.Do(func() error {
			before := cpuTime()
			found, err := l.backend.Check(context.Background())
			least = min(least, cpuTime()-before)
			if len(found) > 0 {
				t.Errorf("found %v", found)
			}
			return err
		}))
	}
	fmt.Printf("policy check of %d pods: %v CPU\n", pods, least)
	if least > pods*checkBudget && !emulated() {
		t.Errorf("a check of %d pods costs %v of a processor, want at most %v", pods, least, pods*checkBudget)
	}
}
