// SPDX-License-Identifier: Apache-2.0

package path

import (
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Instruments are changes of the programs before they are loaded.
type Instruments struct {
	// Coverage records the blocks that run, if it is not nil.
	Coverage *Coverage
	// Unsettled makes Runner.unsettle possible.
	Unsettled bool
}

// arrival holds the fields of struct sk_buff that test runs of netfilter programs cannot set: the mark, and the
// device on which a packet arrived. The programs read them from an array instead. Its third word is the step of
// the generation.
type arrival struct {
	values *ebpf.Map
	memory *ebpf.Memory
}

// arrivalFields are the indices of the fields in the array, in words.
var arrivalFields = map[string]uint32{"mark": 0, "skb_iif": 1}

// stepOffset is the offset of the step of the generation in the array, in bytes.
const stepOffset = 8

func newArrival() (*arrival, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "arrival", Type: ebpf.Array, KeySize: 4, ValueSize: 12, MaxEntries: 1, Flags: 1 << 10 /* BPF_F_MMAPABLE */})
	if err != nil {
		return nil, fmt.Errorf("create the array of fields: %w", err)
	}
	memory, err := m.Memory()
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("map the array of fields: %w", err)
	}
	return &arrival{m, memory}, nil
}

// set makes the next packets arrive on a device, with a mark.
func (a *arrival) set(mark uint32, device int) error {
	b := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, mark), uint32(device))
	_, err := a.memory.WriteAt(b, 0)
	return err
}

// setStep sets what programs add to the generation of the maps before each time that they read it.
func (a *arrival) setStep(n uint32) error {
	_, err := a.memory.WriteAt(binary.NativeEndian.AppendUint32(nil, n), stepOffset)
	return err
}

func (a *arrival) Close() error { return a.values.Close() }

// instrument changes the programs of a spec before they are loaded: they read the fields of a.
func instrument(spec *ebpf.CollectionSpec, a *arrival, with Instruments) error {
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		p := spec.Programs[name]
		if with == (Instruments{}) && p.Type != ebpf.Netfilter {
			continue
		}
		g, err := newGraph(p.Instructions)
		if err != nil {
			return fmt.Errorf("instrument %s: %w", name, err)
		}
		before := make(map[int]asm.Instructions)
		if with.Coverage != nil {
			before = with.Coverage.notes(g, objectOf(spec), name)
		}
		if with.Unsettled {
			if err := a.addSteps(g, before); err != nil {
				return fmt.Errorf("instrument %s: %w", name, err)
			}
		}
		if p.Type == ebpf.Netfilter {
			if err := a.replace(g, before, spec.Types); err != nil {
				return fmt.Errorf("instrument %s: %w", name, err)
			}
		}
		p.Instructions = g.insert(before)
	}
	return nil
}

// objectOf returns the name of the compiled object of a spec.
func objectOf(spec *ebpf.CollectionSpec) string {
	switch {
	case spec.Programs["from_pod"] != nil:
		return "pod"
	case spec.Programs["uplink"] != nil:
		return "xdp"
	}
	return "egress"
}

// skbField finds the index of a field of struct sk_buff in a relocation.
var skbField = regexp.MustCompile(`Struct:"sk_buff"\[0:(\d+)\]`)

// replace makes a program read the fields from the array.
func (a *arrival) replace(g *graph, before map[int]asm.Instructions, types *btf.Spec) error {
	var skb *btf.Struct
	if err := types.TypeByName("sk_buff", &skb); err != nil {
		return err
	}
	replaced := 0
	for i, ins := range g.insns {
		relocation := btf.CORERelocationMetadata(&ins)
		if relocation == nil {
			continue
		}
		found := skbField.FindStringSubmatch(relocation.String())
		if found == nil {
			continue
		}
		n, err := strconv.Atoi(found[1])
		if err != nil || n >= len(skb.Members) {
			return fmt.Errorf("unknown field in %s", relocation)
		}
		place, wanted := arrivalFields[skb.Members[n].Name]
		if !wanted {
			continue
		}
		if ins.OpCode.Class() != asm.LdXClass || ins.OpCode.Size() != asm.Word {
			return fmt.Errorf("field %s is not read by a load of 32 bits", skb.Members[n].Name)
		}
		load := asm.LoadMem(ins.Dst, ins.Dst, 0, asm.Word)
		if s := ins.Source(); s != nil {
			load = load.WithSource(s)
		}
		if fn := btf.FuncMetadata(&ins); fn != nil {
			load = btf.WithFuncMetadata(load, fn)
		}
		before[i] = append(before[i], asm.LoadMapValue(ins.Dst, a.values.FD(), 4*place))
		g.insns[i] = load.WithSymbol(ins.Symbol())
		replaced++
	}
	if replaced != len(arrivalFields) {
		return fmt.Errorf("%d loads of fields instead of %d", replaced, len(arrivalFields))
	}
	return nil
}

// addSteps makes a program add the step to the generation of the maps before each load of it in current_generation (bpf/include/policy.h).
func (a *arrival) addSteps(g *graph, before map[int]asm.Instructions) error {
	live, line := g.liveness(), ""
	for i, ins := range g.insns {
		if at, ok := ins.Source().(*btf.Line); ok {
			line = at.Line()
		}
		if !strings.Contains(line, "s->number") || ins.OpCode.Class() != asm.LdXClass || ins.OpCode.Size() != asm.Word {
			continue
		}
		free, ok := dead(live[i])
		if !ok {
			return fmt.Errorf("no register is free at instruction %d", i)
		}
		before[i] = append(before[i], asm.LoadMapValue(free, a.values.FD(), stepOffset), asm.LoadMem(free, free, 0, asm.Word),
			asm.AddAtomic.Mem(ins.Src, free, asm.Word, ins.Offset))
	}
	return nil
}
