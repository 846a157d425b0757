// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// comparison runs the command of Hubble, and counts its requests and the answers that differ from what is wanted.
type comparison struct {
	t *testing.T
	// command is the program, home the directory of its settings.
	command, home string
	sent, differ  int
	snapshot      *model.Snapshot
	evaluator     *policy.Evaluator
}

// server is what the command asks: the agent of a node, or the relay.
type server struct {
	name, address string
	// states are parts of what it writes about nodes beside the flows. Without them it writes nothing.
	states []string
}

func hubbleSocket(n *cluster.Node) string { return "unix://" + n.Socket() + ".hubble" }

// wrong reports a difference.
func (c *comparison) wrong(format string, args ...any) {
	c.t.Helper()
	c.differ++
	c.t.Errorf(format, args...)
}

// prepare returns the command with arguments. Its context ends with the test.
func (c *comparison) prepare(s server, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), c.command, append(args, "--server", s.address, "--timeout", "20s")...)
	cmd.Env = append(os.Environ(), "HOME="+c.home)
	c.sent++
	return cmd
}

// run returns what the command prints, and what it writes to the standard error.
func (c *comparison) run(s server, args ...string) (out, errs string) {
	c.t.Helper()
	cmd := c.prepare(s, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		c.wrong("%s: hubble %q: %v\n%s%s", s.name, args, err, stdout.String(), stderr.String())
	}
	return stdout.String(), stderr.String()
}

// observe returns the flows that the command prints, which must be in order of their times.
func (c *comparison) observe(s server, args ...string) (list []seenFlow) {
	c.t.Helper()
	out, states := c.run(s, append([]string{"observe", "-o", "json"}, args...)...)
	for line := range strings.Lines(out) {
		var f seenFlow
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.Flow.UUID == "" {
			c.wrong("%s: hubble observe %q: not a flow: %s (%v)", s.name, args, line, err)
			continue
		}
		if len(list) > 0 && f.Flow.Time.Before(list[len(list)-1].Flow.Time) {
			c.wrong("%s: hubble observe %q: a flow of %s is late", s.name, args, f.Flow.Time)
		}
		list = append(list, f)
	}
	for _, part := range s.states {
		if !strings.Contains(states, part) {
			c.wrong("%s: hubble observe %q writes %q, without %q", s.name, args, states, part)
		}
	}
	if len(s.states) == 0 && states != "" {
		c.wrong("%s: hubble observe %q writes %q", s.name, args, states)
	}
	return list
}

// stream runs a command that does not end, calls done with each line, and meanwhile from time to time. It interrupts the
// command when done returns true.
func (c *comparison) stream(s server, args string, done func(line string) bool, meanwhile func()) {
	c.t.Helper()
	cmd := c.prepare(s, strings.Fields(args)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for r := bufio.NewScanner(out); r.Scan(); {
			lines <- r.Text()
		}
	}()
	var seen []string
	tick, patience := time.NewTicker(200*time.Millisecond), time.NewTimer(time.Minute)
	defer tick.Stop()
	defer patience.Stop()
	for ended := false; !ended; {
		select {
		case line, more := <-lines:
			seen = append(seen, line)
			if ended = !more || done(line); !more {
				c.wrong("%s: hubble %s ends after\n%s", s.name, args, strings.Join(seen, "\n"))
			}
		case <-tick.C:
			meanwhile()
		case <-patience.C:
			ended = true
			c.wrong("%s: hubble %s prints only\n%s", s.name, args, strings.Join(seen, "\n"))
		}
	}
	cmd.Process.Signal(os.Interrupt)
	for range lines { // until its end
	}
	// Some commands leave the signal to the system.
	if err := cmd.Wait(); err != nil && cmd.ProcessState.String() != "signal: interrupt" {
		c.wrong("%s: hubble %s, interrupted: %v", s.name, args, err)
	}
}

// filters sends all requests to a server, and compares the answers with a selection from all its flows.
func (c *comparison) filters(s server, all []seenFlow, mustMatch bool) {
	c.t.Helper()
	for args, keep := range requests(all[len(all)/2]) {
		matching := slices.DeleteFunc(slices.Clone(all), func(f seenFlow) bool { return !keep(f) })
		if mustMatch && len(matching) == 0 && !slices.Contains(matchNothing, args) {
			c.wrong("%s: no flow matches %s: the comparison shows nothing", s.name, args)
		}
		for limit, want := range map[string][]seenFlow{"--last 4096": matching, "--last 3": matching[max(0, len(matching)-3):], "--first 2": matching[:min(2, len(matching))]} {
			if limit != "--last 4096" && strings.HasPrefix(args, "--since") {
				continue // which takes precedence
			}
			got := c.observe(s, strings.Fields(args+" "+limit)...)
			if !slices.EqualFunc(got, want, func(a, b seenFlow) bool { return a.Flow.UUID == b.Flow.UUID }) {
				c.wrong("%s: hubble observe %s %s: %d flows, want %d", s.name, args, limit, len(got), len(want))
			}
		}
	}
}

// check compares a flow with the reference evaluator.
func (c *comparison) check(s server, f seenFlow) {
	c.t.Helper()
	if fault := checkFlow(c.snapshot, c.evaluator, f); fault != "" {
		c.wrong("%s: %s: %+v", s.name, fault, f.Flow)
	}
}

// prints runs commands, which must print some texts.
func (c *comparison) prints(s server, commands map[string][]string) {
	c.t.Helper()
	for args, wanted := range commands {
		out, _ := c.run(s, strings.Fields(args)...)
		for _, want := range wanted {
			if !strings.Contains(out, want) {
				c.wrong("%s: hubble %s prints\n%s\nwithout %q", s.name, args, out, want)
			}
		}
	}
}

// peers follows the list of nodes until it has names.
func (c *comparison) peers(s server, names ...string) {
	c.t.Helper()
	c.stream(s, "watch peers", func(line string) bool {
		names = slices.DeleteFunc(names, func(n string) bool { return strings.Contains(line, "PEER_ADDED") && strings.Contains(line, n) })
		return len(names) == 0
	}, func() {})
}

// follow follows flows: first the newest kept ones, then a new one of each kind that wanted names, which make provokes.
func (c *comparison) follow(s server, kept []seenFlow, wanted map[string]bool, make func()) {
	c.t.Helper()
	var first []string
	began := time.Now()
	c.stream(s, "observe --follow --last 2 -o json", func(line string) bool {
		var f seenFlow
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.Flow.UUID == "" {
			c.wrong("%s: followed: not a flow: %s (%v)", s.name, line, err)
			return false
		}
		c.check(s, f)
		if first = append(first, f.Flow.UUID); f.Flow.Time.After(began) {
			delete(wanted, f.Flow.Node+" "+f.Flow.Verdict)
		}
		return len(wanted) == 0
	}, make)
	if len(first) < 2 || first[0] != kept[len(kept)-2].Flow.UUID || first[1] != kept[len(kept)-1].Flow.UUID {
		c.wrong("%s: --follow --last 2 does not begin with the two newest flows: %v", s.name, first[:min(2, len(first))])
	}
}
