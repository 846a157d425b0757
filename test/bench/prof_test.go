package main
import ("testing";"io";"time")
import "encoding/json"
import "os"
import "github.com/isthmus-net/isthmus/common/model"
import "runtime"
import "golang.org/x/sys/unix"
import "runtime/pprof"
import "fmt"
import "slices"
import "github.com/isthmus-net/isthmus/common/policy"
func cpu() time.Duration { var ts unix.Timespec; unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); return time.Duration(ts.Nano()) }
func TestProf(t *testing.T){ runtime.LockOSThread()
 b := &bench{Encoder: json.NewEncoder(io.Discard), now: time.Unix(0,0)}
 s, e := cluster(); b.snapshot, b.endpoints = *s, e
 b.compiler = policy.NewCompiler()
 b.compiler.Compile(b.input())
 var f *os.File
 if os.Getenv("PROF")!="" { f,_ = os.Create(os.Getenv("PROF")) }
 all:=cases(); all=append(all, testCase{"relabel2", 100, 500, func(b *bench, i int) { b.relabel(i%local*nodes, model.MakeLabels(labelsOf((i*7+(i/local)*3)%labelSets))) }})
 for _, c := range all {
  if w:=os.Getenv("CASE"); w!="" && c.name!=w { continue }
  if f!=nil { pprof.StartCPUProfile(f) }
  rounds:=1
  if f!=nil { rounds=20 }
  var ds []time.Duration
  for r:=range rounds { for i := range c.times { c.change(b,i+r*c.times); in:=b.input(); t0:=cpu(); b.compiler.Compile(in); ds=append(ds,cpu()-t0) } }
  if f!=nil { pprof.StopCPUProfile() }
  slices.Sort(ds)
  fmt.Printf("%-40s min %8.0f med %8.0f p90 %8.0f us\n", c.name, micro(ds[0]), micro(ds[len(ds)/2]), micro(ds[len(ds)*9/10]))
 }
}
