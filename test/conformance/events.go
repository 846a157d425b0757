// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/flowevents"
)

// eventSession is the configuration of the ETW session of this program. That of the agent stays.
func eventSession() etw.Config {
	c := flowevents.Session()
	c.Name = "isthmus-conformance"
	return c
}

// eventWait bounds the wait for an event. Windows delivers events once a second.
const eventWait = 30 * time.Second

// drops reports whether VFP writes an event that the agent understands when B denies what A sends.
func (p *pair) drops(ctx context.Context) (Answer, error) {
	source, err := p.wire.Events()
	if err != nil {
		return Answer{Detail: "no session of ETW: " + err.Error()}, nil
	}
	reading, cancel := context.WithTimeout(ctx, eventWait)
	defer cancel()
	var seen collected
	ended := make(chan error, 1)
	go func() { ended <- source.Read(reading, seen.add) }()
	want := fmt.Sprintf("ingress %s -> %s TCP/%d", p.a.ip, p.b.ip, probePort)
	for reading.Err() == nil && !seen.has(want) {
		if reached, err := p.with(ctx, acl.DenyAll()...); err != nil || reached {
			return Answer{Detail: fmt.Sprintf("B denies everything, and A reaches it: %t", reached)}, err
		}
		select {
		case err := <-ended:
			return Answer{Answer: "no", Wrong: true, Detail: fmt.Sprintf("the session has ended: %v", err)}, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
	cancel()
	<-ended
	found := seen.has(want)
	return Answer{Answer: answer(found, "yes", "no"), Wrong: !found, Detail: seen.detail(want)}, nil
}

// collected are the events of a session.
type collected struct {
	mu    sync.Mutex
	other []string          // the first of those that the agent does not take for drops of ACLs, as fields
	found map[string]string // fields of the others, by packet
}

// maxEvents bounds the events that are kept.
const maxEvents = 20

func (c *collected) add(list []etw.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = make(map[string]string)
	}
	for i := range list {
		packet, ok := flowevents.Describe(&list[i])
		switch text := fields(&list[i]); {
		case ok && len(c.found) < maxEvents:
			c.found[packet] = text
		case !ok && len(c.other) < maxEvents:
			c.other = append(c.other, text)
		}
	}
}

func (c *collected) has(packet string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found[packet] != ""
}

// detail returns the fields of the wanted event, or what there was instead.
func (c *collected) detail(packet string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := c.found[packet]; text != "" {
		return text
	}
	text := fmt.Sprintf("no event %q; %d events of the layer of ACLs, %d others", packet, len(c.found), len(c.other))
	for packet, fields := range c.found {
		text += "; " + packet + ": " + fields
	}
	return strings.Join(append([]string{text}, c.other...), "; ")
}

// fields returns an event as text.
func fields(e *etw.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "event %d", e.ID)
	for _, f := range e.Fields {
		switch {
		case f.Text != "":
			fmt.Fprintf(&b, " %s=%q", f.Name, f.Text)
		case f.Meaning != "":
			fmt.Fprintf(&b, " %s=%d(%s)", f.Name, f.Number, strings.TrimSpace(f.Meaning))
		default:
			fmt.Fprintf(&b, " %s=%x", f.Name, f.Bytes)
		}
	}
	return b.String()
}
