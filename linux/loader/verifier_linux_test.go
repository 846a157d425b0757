// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// recorded holds the number of instructions that the verifier of each kernel processed for each
// program, in lines of kernel, program and count.
//
//go:embed testdata/instructions.txt
var recorded string

var update = flag.Bool("update", false, "record the verifier's instructions on this kernel")

// No program becomes much more work for the verifier by accident. The verifier gives up at a
// million instructions, and the counts differ between kernels.
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
				ceiling = max(ceiling, other) // the largest of the recorded kernels
			}
		}
		t.Logf("program %s on %s: %d instructions verified, %d recorded", name, kernel, n, ceiling)
		if n*5 > ceiling*6 {
			t.Errorf("program %s takes the verifier of %s %d instructions, more than 1.2 times the %d recorded: "+
				"make it simpler, or record it in testdata/instructions.txt, for this kernel by 'go test ./linux/loader -run VerifiedInstructions -update'", name, kernel, n, ceiling)
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

// release returns the series of the running kernel, such as "6.12".
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

// verified loads every program and returns the instruction counts of the verifier.
func verified(t *testing.T) map[string]uint32 {
	t.Helper()
	counts := make(map[string]uint32)
	d, err := loader.OpenSandbox()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, spec := range specs(t) {
		for name, value := range d.Constants() { // without constants much of the code is dead
			if v, ok := spec.Variables[name]; ok {
				if err := v.Set(value); err != nil {
					t.Fatal(err)
				}
			}
		}
		loaded, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range loaded.Programs {
			counts[name] = instructions(t, name, p)
		}
		loaded.Close()
	}
	return counts
}

// specs returns all programs that this kernel supports, with maps that are not pinned. Those of mode policy have a
// name that begins with "foreign.".
func specs(t *testing.T) (all []*ebpf.CollectionSpec) {
	t.Helper()
	for _, of := range []struct {
		prefix string
		read   func() (*ebpf.CollectionSpec, error)
	}{{"", bpfobj.LoadPod}, {"", bpfobj.LoadEgress}, {"", bpfobj.LoadXdp}, {"foreign.", bpfobj.LoadPodForeign}, {"foreign.", bpfobj.LoadEgressForeign}} {
		spec, err := of.read()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		programs := make(map[string]*ebpf.ProgramSpec)
		for name, p := range spec.Programs {
			if errors.Is(features.HaveProgramType(p.Type), ebpf.ErrNotSupported) {
				t.Logf("program %s: this kernel has no programs of type %s", of.prefix+name, p.Type)
				continue
			}
			programs[of.prefix+name] = p
		}
		spec.Programs = programs
		all = append(all, spec)
	}
	return all
}

func instructions(t *testing.T, name string, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := info.VerifiedInstructions()
	if !ok || n == 0 {
		t.Fatalf("program %s: the kernel does not say how many instructions it verified", name)
	}
	return n
}

// TestUnorderedProcessors loads the programs as for processors that reorder loads. Barriers surround each load
// of the generation.
func TestUnorderedProcessors(t *testing.T) {
	for _, spec := range specs(t) {
		if err := spec.Variables["unordered_loads"].Set(uint32(1)); err != nil {
			t.Fatal(err)
		}
		found := 0
		for name, p := range spec.Programs {
			found += fencedLoads(t, name, p.Instructions)
		}
		if found == 0 {
			t.Error("no program loads the generation")
		}
		loaded, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatal(err)
		}
		loaded.Close()
	}
}

// fencedLoads returns the number of loads of the generation, and reports those without two exchanges behind the
// reference to the map.
func fencedLoads(t *testing.T, name string, code asm.Instructions) (found int) {
	t.Helper()
	const near = 24 // instructions from the reference to the second exchange
	for i := range code {
		if code[i].Reference() != "generation" {
			continue
		}
		found++
		exchanges := 0
		for _, next := range code[i+1 : min(i+1+near, len(code))] {
			if next.OpCode.Class() == asm.StXClass && next.OpCode.Mode() == asm.AtomicMode {
				exchanges++
			}
		}
		if exchanges < 2 {
			t.Errorf("program %s: %d barriers around the load of the generation at instruction %d, want 2", name, exchanges, i)
		}
	}
	return found
}
