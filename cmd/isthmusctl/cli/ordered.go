// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
)

// InOrder computes the results for 0 to n-1, several at one time, and emits them in order
// from one goroutine. It holds only a few results at a time. It ends with the first error,
// or when the context ends.
func InOrder[T any](ctx context.Context, n int, compute func(i int) (T, error), emit func(i int, result T) error) error {
	type outcome struct {
		result T
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Each element of the queue is a computation that has begun: the queue bounds them.
	queue := make(chan chan outcome, max(0, runtime.GOMAXPROCS(0)-1))
	go func() {
		defer close(queue)
		for i := range n {
			done := make(chan outcome, 1)
			select {
			case queue <- done:
			case <-ctx.Done():
				return
			}
			go func() {
				result, err := compute(i)
				done <- outcome{result, err}
			}()
		}
	}()
	i := 0
	for done := range queue {
		o := <-done
		if o.err == nil {
			o.err = ctx.Err()
		}
		if o.err == nil {
			o.err = emit(i, o.result)
		}
		if o.err != nil {
			return o.err
		}
		i++
	}
	return ctx.Err()
}

// JSONList writes an object of a kind whose items are a list, element by element.
type JSONList struct {
	out  io.Writer
	kind string
	n    int
}

// NewJSONList returns an empty list.
func NewJSONList(out io.Writer, kind string) *JSONList { return &JSONList{out: out, kind: kind} }

// Add writes an element.
func (l *JSONList) Add(value any) error {
	var b bytes.Buffer
	b.WriteString(",\n    ")
	if l.n == 0 {
		b.Reset()
		b.WriteString(Head(l.kind) + ",\n  \"items\": [\n    ")
	}
	l.n++
	enc := json.NewEncoder(&b)
	enc.SetIndent("    ", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	_, err := l.out.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return err
}

// Close ends the list.
func (l *JSONList) Close() error {
	end := "\n  ]\n}\n"
	if l.n == 0 {
		end = Head(l.kind) + ",\n  \"items\": []\n}\n"
	}
	_, err := io.WriteString(l.out, end)
	return err
}
