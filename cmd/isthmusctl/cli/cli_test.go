// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestExitStatus(t *testing.T) {
	for name, c := range map[string]struct {
		err               error
		plain, answering  int
		answeringIsSilent bool
	}{
		"success":            {nil, 0, 0, true},
		"a negative answer":  {fmt.Errorf("compare: %w", ErrNo), 1, 1, true},
		"another error":      {errors.New("read\nfile"), 1, 2, false},
		"a wrong flag":       {Usagef("--port %d: give a port", 0), 2, 2, false},
		"a node not ready":   {fmt.Errorf("n1: %w", ErrNotReady), 3, 3, false},
		"an interrupted run": {context.Canceled, 1, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := func(*cobra.Command, []string) error { return c.err }
			var out, errs bytes.Buffer
			e := Env{Stdout: &out, Stderr: &errs}
			if got := e.Run(context.Background(), []string{"x"}, &cobra.Command{Use: "x", RunE: f}); got != c.plain {
				t.Errorf("exit status %d, want %d", got, c.plain)
			}
			errs.Reset()
			if got := e.Run(context.Background(), []string{"x"}, &cobra.Command{Use: "x", RunE: Answering(f)}); got != c.answering {
				t.Errorf("answering: exit status %d, want %d", got, c.answering)
			}
			if lines := strings.Count(errs.String(), "\n"); (lines == 0) != c.answeringIsSilent || lines > 1 {
				t.Errorf("stderr: %q", errs.String())
			}
		})
	}
}

// InOrder emits results in order, and stops at the first error of either function.
func TestInOrder(t *testing.T) {
	bad := errors.New("bad")
	for name, c := range map[string]struct {
		computeFails, emitFails int // the number that fails; -1 for none
		want                    int // results that were emitted
	}{
		"all": {-1, -1, 100}, "compute fails": {40, -1, 40}, "emit fails": {-1, 7, 7},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			err := InOrder(context.Background(), 100, func(i int) (int, error) {
				if i == c.computeFails {
					return 0, bad
				}
				return i * i, nil
			}, func(i, result int) error {
				if i == c.emitFails {
					return bad
				}
				got = append(got, result)
				return nil
			})
			if want := c.computeFails >= 0 || c.emitFails >= 0; errors.Is(err, bad) != want {
				t.Errorf("error %v", err)
			}
			if len(got) != c.want || !slices.IsSorted(got) || len(got) > 0 && got[len(got)-1] != (c.want-1)*(c.want-1) {
				t.Errorf("emitted %v, want %d", got, c.want)
			}
		})
	}
}

func TestJSONList(t *testing.T) {
	head := "{\n  \"apiVersion\": \"isthmusctl.isthmus.dev/v1\",\n  \"kind\": \"Numbers\",\n  \"items\": ["
	for n, want := range []string{"]\n}\n", "\n    0\n  ]\n}\n", "\n    0,\n    1\n  ]\n}\n"} {
		want = head + want
		var b bytes.Buffer
		l := NewJSONList(&b, "Numbers")
		for i := range n {
			if err := l.Add(i); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil || b.String() != want {
			t.Errorf("%d elements: %q, %v", n, b.String(), err)
		}
	}
}
