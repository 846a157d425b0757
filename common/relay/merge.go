// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/heap"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

// item is an answer of a node, and when it arrived.
type item struct {
	answer  *observer.GetFlowsResponse
	at      time.Time // of the flow
	arrived time.Time
	number  uint64 // keeps the order of equal times
}

// byTime is a heap of items, the oldest flow first.
type byTime []item

func (h byTime) Len() int      { return len(h) }
func (h byTime) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h byTime) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].number < h[j].number
}
func (h *byTime) Push(x any) { *h = append(*h, x.(item)) }
func (h *byTime) Pop() any {
	all := *h
	last := all[len(all)-1]
	all[len(all)-1] = item{}
	*h = all[:len(all)-1]
	return last
}

// merger orders the flows of several nodes by time. A flow waits for the flows of other nodes, for hold at most. A
// flow that arrives later than that follows flows that are younger than itself.
type merger struct {
	hold time.Duration
	// limit bounds the waiting flows. Beyond it the oldest one does not wait.
	limit  int
	heap   byTime
	number uint64
	// queue holds the waiting items by arrival; those that left the heap before are below released.
	queue []item
	gone  map[uint64]bool
}

func newMerger(hold time.Duration, limit int) *merger {
	return &merger{hold: hold, limit: limit, gone: make(map[uint64]bool)}
}

// add takes an answer that arrived now. The time of one that is dated later, by a wrong clock, is now: due returns all answers up
// to the one that has waited long enough.
func (m *merger) add(answer *observer.GetFlowsResponse, now time.Time) {
	m.number++
	i := item{answer: answer, at: earlier(answer.GetTime().AsTime(), now), arrived: now, number: m.number}
	heap.Push(&m.heap, i)
	m.queue = append(m.queue, item{arrived: now, number: i.number})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// full reports whether more flows wait than limit: due returns some of them now.
func (m *merger) full() bool { return len(m.heap) > m.limit }

// due returns the flows that have waited long enough, and all older ones, in order of time.
func (m *merger) due(now time.Time) (list []*observer.GetFlowsResponse) {
	for m.full() {
		list = append(list, m.pop())
	}
	for len(m.queue) > 0 {
		first := m.queue[0]
		if m.gone[first.number] {
			delete(m.gone, first.number)
			m.queue = m.queue[1:]
			continue
		}
		if now.Sub(first.arrived) < m.hold {
			break
		}
		list = append(list, m.pop())
	}
	return list
}

// all returns the waiting flows.
func (m *merger) all() (list []*observer.GetFlowsResponse) {
	for len(m.heap) > 0 {
		list = append(list, m.pop())
	}
	m.queue, m.gone = nil, make(map[uint64]bool)
	return list
}

func (m *merger) pop() *observer.GetFlowsResponse {
	i := heap.Pop(&m.heap).(item)
	m.gone[i.number] = true
	return i.answer
}

// newest keeps the newest flows of all that are added.
type newest struct {
	limit  int
	heap   byTime
	number uint64
}

func (n *newest) add(answer *observer.GetFlowsResponse) {
	n.number++
	heap.Push(&n.heap, item{answer: answer, at: answer.GetTime().AsTime(), number: n.number})
	if len(n.heap) > n.limit {
		heap.Pop(&n.heap)
	}
}

// all returns the kept flows in order of time.
func (n *newest) all() (list []*observer.GetFlowsResponse) {
	for len(n.heap) > 0 {
		list = append(list, heap.Pop(&n.heap).(item).answer)
	}
	return list
}
