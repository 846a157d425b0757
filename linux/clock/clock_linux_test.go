// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// TestPossibleRates checks clocks of each rate, read at any time before and after a tick. The reader may be interrupted, and the
// kernel may count ticks late. The rate is always possible, and soon the only one.
func TestPossibleRates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, hz := range rates {
		ticks := func(at time.Duration) int { return int(math.Floor(at.Seconds() * float64(hz))) }
		for range 10000 {
			begin := time.Duration(r.Int64N(int64(time.Second)))
			elapsed := time.Duration(r.Int64N(int64(400 * time.Millisecond)))
			interrupted := time.Duration(r.Int64N(int64(100 * time.Millisecond)))
			late := func() time.Duration { return time.Duration(r.Int64N(int64(lag))) }
			n := ticks(begin+elapsed-late()) - ticks(begin-late())
			if got := possibleRates(n, elapsed, elapsed+interrupted); !slices.Contains(got, hz) {
				t.Fatalf("%d ticks of %d Hz in %s to %s: %v", n, hz, elapsed, elapsed+interrupted, got)
			}
			if got := possibleRates(n, elapsed, elapsed+time.Microsecond); elapsed > 300*time.Millisecond && len(got) != 1 {
				t.Fatalf("%d ticks of %d Hz in %s: %v", n, hz, elapsed, got)
			}
		}
	}
	if got := possibleRates(9, 32100*time.Microsecond, 32101*time.Microsecond); !slices.Equal(got, []int{250, 300}) {
		t.Errorf("9 ticks in 32.1 ms: %v, want both 250 and 300", got)
	}
	if got := possibleRates(12, 33*time.Millisecond, 33*time.Millisecond); !slices.Contains(got, 250) {
		t.Errorf("12 ticks in 33 ms, of which the first reading lacked 3: %v, want 250 too", got)
	}
}

// TestMeasureHZ measures the clock of this kernel again and again: the result is always the same.
func TestMeasureHZ(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to load a program: make test runs it")
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want, err := MeasureHZ()
	if err != nil || !slices.Contains(rates, want) {
		t.Fatalf("%d, %v", want, err)
	}
	for range 20 {
		if hz, err := c.measure(); err != nil || hz != want {
			t.Fatalf("measured %d, then %d, %v", want, hz, err)
		}
	}
}
