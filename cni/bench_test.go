// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkPlugin measures whole executions of the plugin: process start to
// exit.
func BenchmarkPlugin(b *testing.B) {
	b.Run("VERSION", func(b *testing.B) {
		percentiles(b, func(int) {
			cmd := exec.Command(filepath.Join(binDir, "isthmus"))
			cmd.Env = []string{"CNI_COMMAND=VERSION"}
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}, func(int) {})
	})
	b.Run("ADD", func(b *testing.B) {
		r := newRig(b)
		r.publish(2000, "10.0.0.0/16")
		conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"isthmus","socket":%q}`, r.socket)
		call := func(command string) func(int) {
			return func(n int) {
				var out printed
				if status := r.execute(&out, command, runtimeConf(n%2000), conf); status != 0 {
					b.Fatalf("%s: %+v", command, out)
				}
			}
		}
		percentiles(b, call("ADD"), call("DEL"))
	})
}

// percentiles times f and reports the median and the 99th percentile.
func percentiles(b *testing.B, f, after func(n int)) {
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		began := time.Now()
		f(n)
		took = append(took, time.Since(began))
		b.StopTimer()
		after(n)
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
