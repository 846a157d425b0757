// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var errKilled = errors.New("killed")

// system is a System that records which steps are in force. It fails or is killed at one call.
type system struct {
	inForce []string
	calls   int
	failAt  int // call of Do that fails after it changed a part
	killAt  int // call of Do or Undo before which the process ends
}

func (s *system) call() {
	s.calls++
	if s.calls == s.killAt {
		panic(errKilled)
	}
}

func (s *system) Do(p *Plan, step Step) error {
	s.call()
	if text := p.Describe(step); !slices.Contains(s.inForce, text) {
		s.inForce = append(s.inForce, text)
	}
	if s.calls == s.failAt {
		return errors.New("no such device")
	}
	return nil
}

func (s *system) Undo(p *Plan, step Step) error {
	s.call()
	s.inForce = slices.DeleteFunc(s.inForce, func(text string) bool { return text == p.Describe(step) })
	return nil
}

func killed(f func() error) (err error, was bool) {
	defer func() {
		if r := recover(); r != nil {
			if r != errKilled {
				panic(r)
			}
			was = true
		}
	}()
	return f(), false
}

func silent(string) {}

// memory is a file of a Progress that needs no disk.
type memory struct{ text []byte }

func (m *memory) save(p *Progress) (err error) {
	m.text, err = json.Marshal(p)
	return err
}

func (m *memory) load(t *testing.T) *Progress {
	t.Helper()
	p, err := decode(m.text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A step that fails is reversed with all before it, whichever step it is.
func TestFailureReverses(t *testing.T) {
	plan, _ := Make(node(), name)
	for i := range plan.Steps {
		file := &memory{}
		s := &system{failAt: i + 1}
		p := Begin(plan)
		err := Forward(p, s, file.save, silent)
		if !errors.Is(err, ErrReversed) || !strings.Contains(err.Error(), plan.Describe(plan.Steps[i])) || len(s.inForce) > 0 {
			t.Errorf("step %d: %v, in force %q", i, err, s.inForce)
		}
		if kept := file.load(t); kept.Done != 0 || !kept.Back {
			t.Errorf("step %d: progress %+v", i, kept)
		}
	}
}

// A process that is killed before any call leaves a file with which the next one continues, or reverses.
func TestKilledAnywhere(t *testing.T) {
	plan, _ := Make(node(), name)
	for kill := 1; kill <= 2*len(plan.Steps); kill++ {
		for _, back := range []bool{false, true} {
			file := &memory{}
			s := &system{killAt: kill}
			_, was := killed(func() error {
				p := Begin(plan)
				if err := Forward(p, s, file.save, silent); err != nil {
					return err
				}
				return Reverse(p, 0, s, file.save, silent)
			})
			if !was {
				t.Fatalf("call %d was not made", kill)
			}
			p := file.load(t)
			if !reflect.DeepEqual(p.Plan.Steps, plan.Steps) {
				t.Fatalf("the plan changed on disk")
			}
			if back || p.Back {
				if err := Reverse(p, 0, s, file.save, silent); err != nil || len(s.inForce) > 0 || p.Done != 0 {
					t.Errorf("killed at %d, reversed: %v, in force %q", kill, err, s.inForce)
				}
				continue
			}
			if err := Forward(p, s, file.save, silent); err != nil || !p.Complete() || len(s.inForce) != len(plan.Steps) {
				t.Errorf("killed at %d, continued: %v, %d of %d steps in force", kill, err, len(s.inForce), len(plan.Steps))
			}
		}
	}
}

// After a complete migration, the pods stay routed until the agent of mode policy has them.
func TestBoundary(t *testing.T) {
	plan, _ := Make(node(), name)
	dir := t.TempDir()
	s, p := &system{}, Begin(plan)
	if err := Forward(p, s, Save(dir), silent); err != nil || !p.NeedsAgent() || p.Returning() {
		t.Fatalf("%v, progress %+v", err, p)
	}
	if err := Forward(p, s, Save(dir), silent); err != nil {
		t.Errorf("a second run: %v", err)
	}
	if err := Reverse(p, plan.Boundary(), s, Save(dir), silent); err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, text := range s.inForce {
		if strings.Contains(text, " from cni0") {
			left++
		}
		if strings.Contains(text, "record") || strings.Contains(text, "rename") {
			t.Errorf("%q is in force for mode policy", text)
		}
	}
	if left != len(plan.Pods) {
		t.Errorf("%d of %d pods are routed", left, len(plan.Pods))
	}
	if err := p.Return(Save(dir)); err != nil || p.NeedsAgent() || !p.Returning() {
		t.Errorf("%v, progress %+v", err, p)
	}
	if err := Forward(p, s, Save(dir), silent); err == nil || !strings.Contains(err.Error(), "being reversed") {
		t.Errorf("forward while it is reversed: %v", err)
	}
	p, err := Load(dir)
	if err != nil || !p.Returning() {
		t.Fatalf("%+v, %v", p, err)
	}
	if err := Reverse(p, 0, s, Save(dir), silent); err != nil || len(s.inForce) > 0 {
		t.Errorf("%v, in force %q", err, s.inForce)
	}
	if err := errors.Join(Forget(dir), Forget(dir)); err != nil {
		t.Error(err)
	}
	if p, err := Load(dir); p != nil || err != nil {
		t.Errorf("forgotten: %+v, %v", p, err)
	}
}

// Without its file a change could not be reversed after a crash, so nothing is changed.
func TestNothingWithoutJournal(t *testing.T) {
	plan, _ := Make(node(), name)
	s := &system{}
	if err := Forward(Begin(plan), s, Save(filepath.Join(t.TempDir(), "missing")), silent); err == nil || s.calls > 0 {
		t.Errorf("%v after %d calls", err, s.calls)
	}
}

func TestJournalIsPrivate(t *testing.T) {
	plan, _ := Make(node(), name)
	dir := t.TempDir()
	if err := Save(dir)(Begin(plan)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, journalName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestDamagedJournal(t *testing.T) {
	for text, want := range map[string]string{
		``:                        "unexpected end",
		`{"version":2}`:           "version is 2",
		`{"version":1,"plan":{}}`: "is not an absolute path",
		`{"version":1,"done":1}`:  "1 of 0 steps",
		`{"version":1,"done":-1}`: "-1 of 0 steps",
		`{"version":1,"plan":{"network":{"confDir":"/c"},"steps":[{"kind":"route"}]}}`:                        "a pod or route that is not in the plan",
		`{"version":1,"plan":{"network":{"confDir":"/c"},"steps":[{"kind":"own","route":2}]}}`:                "a pod or route that is not in the plan",
		`{"version":1,"plan":{"network":{"confDir":"/c"},"steps":[{"kind":"sysctl","path":"../x"}]}}`:         "not a sysctl",
		`{"version":1,"plan":{"network":{"confDir":"/c"},"pods":[{"name":"a"}],"steps":[]}}`:                  "containerID is empty",
		`{"version":1,"plan":{"network":{"confDir":"/c"},"steps":[{"kind":"sysctl","path":"/etc/x"}]}}`:       "not a sysctl",
		`{"version":1,"plan":{"network":{"confDir":"/c"},"steps":[{"kind":"sysctl","path":"a/../../../x"}]}}`: "not a sysctl",
	} {
		if _, err := decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzJournal(f *testing.F) {
	plan, _ := Make(node(), name)
	dir := f.TempDir()
	if err := Save(dir)(Begin(plan)); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"plan":{"network":{"confDir":"/c"},"steps":[{"kind":"gateway"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := decode(text)
		if err != nil {
			return
		}
		for _, s := range p.Plan.Steps { // every step of a valid file can be described and done
			_ = p.Plan.Describe(s)
		}
		if b := p.Plan.Boundary(); b < 0 || b > len(p.Plan.Steps) {
			t.Error(fmt.Sprint("boundary ", b))
		}
	})
}

// Whatever has happened, the steps that are announced are those that follow.
func TestAnnounced(t *testing.T) {
	plan, _ := Make(node(), name)
	describe := func(prefix string, steps []Step) (all []string) {
		for _, s := range steps {
			all = append(all, prefix+plan.Describe(s))
		}
		return all
	}
	for kill := 1; kill <= 2*len(plan.Steps); kill++ {
		left := &memory{}
		killed(func() error {
			p, s := Begin(plan), &system{killAt: kill}
			return errors.Join(Forward(p, s, left.save, silent), Reverse(p, p.Until(), s, left.save, silent))
		})
		for _, back := range []bool{false, true} {
			s, file := &system{}, &memory{left.text}
			p := file.load(t)
			if p.Back && !back {
				continue
			}
			var said []string
			say := func(line string) { said = append(said, line) }
			want, do := describe("", p.Remaining()), func() error { return Forward(p, s, file.save, say) }
			if back {
				until := p.Until()
				want, do = describe("reverse: ", p.Reversal(until)), func() error { return Reverse(p, until, s, file.save, say) }
			}
			if err := do(); err != nil || !slices.Equal(said, want) {
				t.Errorf("killed at %d, back %t: %v, said %q, announced %q", kill, back, err, said, want)
			}
		}
	}
}
