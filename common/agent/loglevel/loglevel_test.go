// SPDX-License-Identifier: Apache-2.0

package loglevel

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestSet(t *testing.T) {
	var v slog.LevelVar
	v.Set(slog.LevelWarn)
	l := New(&v)
	if err := l.Set("debug", 0); err != nil || v.Level() != slog.LevelDebug {
		t.Fatalf("level %v, error %v", v.Level(), err)
	}
	if s := l.Get(); s != (State{Level: "debug", Configured: "warn"}) {
		t.Errorf("state %+v", s)
	}
	for _, bad := range []string{"", "DEBUG", "trace", "info+1", "-4"} {
		if err := l.Set(bad, 0); err == nil || !strings.Contains(err.Error(), "give debug, info, warn or error") {
			t.Errorf("level %q: error %v", bad, err)
		}
	}
	for _, bad := range []time.Duration{-1, Longest + 1} {
		if err := l.Set("info", bad); err == nil {
			t.Errorf("for %s: no error", bad)
		}
	}
	if v.Level() != slog.LevelDebug {
		t.Errorf("a refused change is in force: %v", v.Level())
	}
}

// A level that is set for a time ends, unless another follows.
func TestEnd(t *testing.T) {
	var v slog.LevelVar
	l := New(&v)
	if err := l.Set("error", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); l.Get() != (State{Level: "info", Configured: "info"}); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("state %+v after 20 s", l.Get())
		}
	}
	// The timer of the first call has fired, or waits for the lock: it must not end the second.
	for range 200 {
		if err := l.Set("error", time.Nanosecond); err != nil {
			t.Fatal(err)
		}
		if err := l.Set("debug", time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Microsecond)
		if s := l.Get(); s.Level != "debug" || s.Until.IsZero() {
			t.Fatalf("state %+v: an earlier time ended a later one", s)
		}
	}
}
