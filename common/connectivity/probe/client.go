// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// concurrent bounds the attempts that run at a time.
	concurrent = 64
	// MaxTargets bounds the targets of a call.
	MaxTargets = 128
	// again is the interval in which a client repeats a datagram.
	again = 250 * time.Millisecond
	// MinTimeout is the least time of an attempt.
	MinTimeout = 100 * time.Millisecond
	// MaxTimeout is the longest time of an attempt.
	MaxTimeout = time.Minute
)

// Try tries all targets, many at a time, and returns the answers in the same order. timeout bounds each attempt.
func Try(ctx context.Context, timeout time.Duration, targets []Target) []Answer {
	answers := make([]Answer, len(targets))
	tokens := make(chan struct{}, concurrent)
	var running sync.WaitGroup
	for i, t := range targets {
		tokens <- struct{}{}
		running.Go(func() {
			defer func() { <-tokens }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			answers[i] = try(ctx, t)
			answers[i].Target = t.String()
		})
	}
	running.Wait()
	return answers
}

func try(ctx context.Context, t Target) Answer {
	network := t.Kind
	if network == Connect {
		network = TCP
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, t.address())
	if err != nil {
		return ended(t.Kind, err)
	}
	defer c.Close()
	if t.Kind == Connect {
		return Answer{State: Answered}
	}
	deadline, _ := ctx.Deadline() // Try sets one
	if err := c.SetDeadline(deadline); err != nil {
		return ended(t.Kind, err)
	}
	token := rand.Text()
	if t.Kind == UDP {
		stop := repeat(c, token)
		defer stop()
	} else if _, err := io.WriteString(c, token+"\n"); err != nil {
		return ended(t.Kind, err)
	}
	text, err := bufio.NewReader(io.LimitReader(c, maxMessage)).ReadString('\n')
	if err != nil {
		return ended(t.Kind, err)
	}
	words := strings.Fields(text)
	if len(words) != 3 || words[0] != token {
		return Answer{State: Failed, Error: fmt.Sprintf("another program answers there: %.40q", text)}
	}
	client, err := netip.ParseAddr(words[2])
	if err != nil {
		return Answer{State: Failed, Error: fmt.Sprintf("another program answers there: %.40q", text)}
	}
	return Answer{State: Answered, Server: words[1], Client: client}
}

// repeat sends a datagram until stop: one may be lost.
func repeat(c net.Conn, token string) (stop func()) {
	done := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			_, _ = io.WriteString(c, token+"\n") // an error returns from the read, too
			select {
			case <-done:
				return
			case <-time.After(again):
			}
		}
	})
	return func() {
		close(done)
		sending.Wait()
	}
}

// ended classifies the error of an attempt.
func ended(kind string, err error) Answer {
	a := Answer{State: Failed, Error: err.Error()}
	var lookup *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &lookup):
		a.State, a.Resolver = Lookup, lookup.Server
	case refused(kind, err):
		a.State = Refused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		a.State = Timeout
	}
	return a
}
