// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/corpus"
)

// adopted plays a step with pods that run before the agents start, restarts the agents, and removes Isthmus again.
func (b *bench) adopted(cases []corpus.Case) {
	b.t.Helper()
	b.alone(&cases[0])
	name := b.becomeDenying(cases)
	before := b.picture()
	starts := time.Now()
	b.start()
	b.unpoliced(starts)
	for range 2 {
		b.judge(name + ", with running pods")
		for _, n := range b.cluster.Nodes {
			if err := n.Restart(ctx, syscall.SIGKILL); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	if !b.network.windows { // mode observe is for Linux
		b.observed(name)
	}
	adopted := 0
	for _, n := range b.cluster.Nodes {
		records, err := filepath.Glob(filepath.Join(n.Records(), "*.json"))
		if err != nil {
			b.t.Fatal(err)
		}
		for _, file := range records {
			text, err := os.ReadFile(file)
			if err != nil {
				b.t.Fatal(err)
			}
			if bytes.Contains(text, []byte(dataplane.HandlePrefix)) {
				adopted++
			}
		}
	}
	if adopted != len(b.lab.Pods) {
		b.t.Errorf("%d pods were adopted, want %d", adopted, len(b.lab.Pods))
	}
	b.y.adopted += adopted
	b.chainSome()
	b.judge(name + ", with every second pod chained")
	b.remove()
	b.unchanged(before, "adopting and chaining pods, and removing Isthmus")
	b.clear()
}

// unpoliced waits until the agents have adopted all pods. They report the time since a pod's network was ready, which is
// at least that until the agents started.
func (b *bench) unpoliced(starts time.Time) {
	b.t.Helper()
	for _, n := range b.cluster.Nodes {
		count, least := 0, 0.0
		for _, p := range b.lab.Pods {
			if p.Node == n {
				count, least = count+1, least+starts.Sub(time.Unix(p.Started, 0)).Seconds()
			}
		}
		wait(b.t, fmt.Sprintf("%d adopted pods on %s, which ran without policy for %f seconds", count, n.Name, least), func() bool {
			text, _, err := n.Get("/metrics")
			if err != nil {
				b.t.Fatal(err)
			}
			adopted := regexp.MustCompile(`(?m)^isthmus_pod_unpoliced_seconds_count (\d+)$`).FindStringSubmatch(text)
			sum := regexp.MustCompile(`(?m)^isthmus_pod_unpoliced_seconds_sum (\S+)$`).FindStringSubmatch(text)
			if adopted == nil || sum == nil || adopted[1] != strconv.Itoa(count) {
				return false
			}
			seconds, err := strconv.ParseFloat(sum[1], 64)
			return err == nil && seconds >= least
		})
	}
}

// chainSome adds every second adopted pod by the plugin, as if it had been in the list from the start.
func (b *bench) chainSome() {
	b.t.Helper()
	for i, id := range slices.SortedFunc(maps.Keys(b.lab.Pods), model.PodID.Compare) {
		if i%2 == 0 {
			if err := b.lab.Pods[id].Chain(ctx); err != nil {
				b.t.Fatalf("ADD of isthmus-cni for %s: %v", id, err)
			}
		}
	}
}

// becomeDenying applies the first step whose policies deny a flow between its pods. It returns the name of its case.
func (b *bench) becomeDenying(cases []corpus.Case) string {
	b.t.Helper()
	for _, cs := range cases {
		for i := range cs.Steps {
			if err := b.lab.Become(ctx, &cs.Steps[i]); err != nil {
				b.t.Fatal(err)
			}
			flows, err := b.cluster.Flows(ctx)
			if err != nil {
				b.t.Fatal(err)
			}
			if slices.ContainsFunc(flows, func(f *cluster.Flow) bool { return f.Want == model.Deny }) {
				return cs.Name
			}
		}
	}
	b.t.Fatal("no case denies a flow")
	return ""
}

// observed replaces the agents by agents in mode observe. Every flow must pass, at the first attempt, and events name
// flows that policy denies. Then the agents enforce policy again.
func (b *bench) observed(name string) {
	b.t.Helper()
	restart := func(mode string) {
		b.t.Helper()
		b.cluster.SetAgentFlags("--mode=" + mode)
		for _, n := range b.cluster.Nodes {
			if err := n.Restart(ctx, syscall.SIGTERM); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	restart("observe")
	flows, err := b.cluster.Flows(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	denied := 0
	for _, f := range flows {
		if f.Want == model.Deny {
			denied++
		}
		f.Want = model.Allow
	}
	if err := b.cluster.Open(ctx, flows, func(int) {}); err != nil {
		b.t.Fatal(err)
	}
	for _, f := range flows {
		if f.Got != model.Allow {
			b.y.differ++
			b.t.Errorf("%s, observed: %s to %s on %s, %s does not pass", name, f.From.Name, f.To.PodID, f.To.Node.Name, f.Flow)
		}
	}
	wait(b.t, fmt.Sprintf("an event about one of %d flows that policy denies", denied), func() bool {
		for _, n := range b.cluster.Nodes {
			out, err := n.Ctl(ctx, "events", "--verdict", "observe", "--last", "2000").Output()
			if err != nil {
				b.t.Fatal(err)
			}
			if bytes.Contains(out, []byte("rule")) {
				return true
			}
		}
		return false
	})
	b.y.observed += denied
	restart("policy")
	b.judge(name + ", enforced again")
}
