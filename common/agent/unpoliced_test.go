// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// The time without policy counts from when the network of a pod was ready, also if no agent ran then. Without that time, or
// with one in the future, it counts from when the agent knew the pod. An adopted pod counts once.
func TestUnpolicedSeconds(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		began := time.Now()
		started := []int64{began.Add(-time.Hour).Unix(), 0, began.Add(time.Hour).Unix()}
		pods := func(n int) *model.Snapshot {
			return cluster{pods: n, nodes: []*model.Node{node("node1")}, edit: func(i int, p *model.Pod) {
				p.IPs, p.Created, p.Started = []netip.Addr{runningIP(i)}, int64(i), started[i]
			}}.snapshot()
		}
		want := func(count int, least time.Duration) {
			t.Helper()
			sum, err := strconv.ParseFloat(r.metric("isthmus_pod_unpoliced_seconds_sum"), 64)
			if got := r.metric("isthmus_pod_unpoliced_seconds_count"); got != strconv.Itoa(count) || err != nil || sum < least.Seconds() || sum > least.Seconds()+5 {
				t.Errorf("%s pods ran %f seconds without policy, want %d and %s: %v", got, sum, count, least, err)
			}
		}
		r.fake.SetInterfaces(made("5:2", 0), made("6:2", 1), made("7:2", 2))
		r.policyOnlyAgent()
		r.agent.Publish(pods(3))
		time.Sleep(3 * time.Second)
		want(3, time.Hour)
		r.end()
		time.Sleep(10 * time.Minute)
		started = append(started, time.Now().Add(-7*time.Minute).Unix()) // while no agent runs
		r.fake.SetInterfaces(made("5:2", 0), made("6:2", 1), made("7:2", 2), made("8:2", 3))
		r.start()
		r.agent.Publish(pods(4))
		time.Sleep(3 * time.Second)
		want(1, 7*time.Minute)
		r.end()
	})
}
