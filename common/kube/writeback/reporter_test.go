// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestWorkYields checks that many writes about policies do not delay the condition of the Node, and that all are done although
// facts change all the time.
func TestWorkYields(t *testing.T) {
	r := &Reporter{wake: make(chan struct{}, 1), tasks: make(map[string]*task), log: slog.New(slog.DiscardHandler),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x"}, []string{"what", "result"})}
	var done []string
	began := time.Now().Add(-time.Minute)
	add := func(key, kind string, age int) {
		r.tasks[key] = &task{kind: kind, due: began.Add(-time.Duration(age) * time.Second), do: func(context.Context) error {
			done = append(done, key)
			r.notify()
			return nil
		}}
	}
	for i := range 4 {
		add(fmt.Sprint("event ", i), "event", i)
	}
	for i := range 4 { // each plan finds that the Node has another condition, and a new event
		r.notify()
		<-r.wake // as Run does
		add("node", "node", 0)
		add(fmt.Sprint("a new event ", i), "event", -1)
		r.work(t.Context())
	}
	want := []string{"node", "event 3", "node", "event 2", "node", "event 1", "node", "event 0"}
	if !slices.Equal(done, want) {
		t.Errorf("done: %q, want %q", done, want)
	}
}
