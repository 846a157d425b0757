// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	_ "embed"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// recorded says how many instructions the verifier of each kernel processed of
// each program: lines of kernel, program and count.
//
//go:embed testdata/instructions.txt
var recorded string

var update = flag.Bool("update", false, "record the verifier's instructions on this kernel")

// No program becomes much more work for the verifier by accident: it gives up
// at a million instructions, and kernels differ in how soon they get there.
func TestVerifiedInstructions(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	kernel := release(t)
	counts := parseInstructions(t, recorded)
	for name, n := range verified(t) {
		if *update {
			counts[[2]string{kernel, name}] = n
			continue
		}
		ceiling, ok := counts[[2]string{kernel, name}]
		for k, other := range counts {
			if !ok && k[1] == name {
				ceiling = max(ceiling, other) // of kernels that are recorded
			}
		}
		t.Logf("program %s on %s: %d instructions verified, %d recorded", name, kernel, n, ceiling)
		if n*5 > ceiling*6 {
			t.Errorf("program %s takes the verifier of %s %d instructions, more than 1.2 times the %d recorded: "+
				"make it simpler, or record it by 'go test ./linux/loader -run VerifiedInstructions -update'", name, kernel, n, ceiling)
		}
	}
	if *update {
		var text strings.Builder
		for _, k := range slices.SortedFunc(maps.Keys(counts), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
			fmt.Fprintln(&text, k[0], k[1], counts[k])
		}
		if err := os.WriteFile("testdata/instructions.txt", []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// release is the series of the running kernel, "6.12".
func release(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(parts) < 2 {
		t.Fatalf("kernel release %q", parts)
	}
	return parts[0] + "." + parts[1]
}

func parseInstructions(t *testing.T, text string) map[[2]string]uint32 {
	t.Helper()
	counts := make(map[[2]string]uint32)
	for line := range strings.Lines(text) {
		var kernel, name string
		var n uint32
		if _, err := fmt.Sscan(line, &kernel, &name, &n); err != nil {
			t.Fatalf("testdata/instructions.txt: line %q: %v", line, err)
		}
		counts[[2]string{kernel, name}] = n
	}
	return counts
}

// verified loads every program and asks the kernel what that took.
func verified(t *testing.T) map[string]uint32 {
	t.Helper()
	spec, err := bpfobj.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	counts := make(map[string]uint32)
	for name, p := range loaded.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok || n == 0 {
			t.Fatalf("program %s: the kernel does not say how many instructions it verified", name)
		}
		counts[name] = n
	}
	return counts
}
