// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/migrate"
	"github.com/isthmus-net/isthmus/common/agent/dirlock"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// during is a writer that calls a function once, at the first write.
type during func()

func (d *during) Write(b []byte) (int, error) {
	if f := *d; f != nil {
		*d = nil
		f()
	}
	return len(b), nil
}

// A rollback that waits for a run reverses what that run has done meanwhile, too.
func TestRollbackAfterARun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	pins, confs := filepath.Join(dir, "pins"), []string{dir + "/1.conflist", dir + "/2.conflist", dir + "/3.conflist"}
	plan := takeover.Plan{Network: takeover.Network{From: "bridge", Name: "n", ConfDir: dir}}
	for _, path := range confs {
		plan.Steps = append(plan.Steps, takeover.Step{Kind: takeover.KeepConf, Path: path})
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	progress := takeover.Begin(&plan)
	lock, err := dirlock.Take(t.Context(), pins, 0, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := takeover.Save(dir)(progress); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	waiting := during(func() {
		go func() { // the run does two steps, begins with the third and is killed
			defer lock.Release()
			for progress.Done = range confs[:2] {
				if err := os.Rename(confs[progress.Done], confs[progress.Done]+takeover.AsideSuffix); err != nil {
					t.Error(err)
				}
			}
			progress.Done = 2
			if err := takeover.Save(dir)(progress); err != nil {
				t.Error(err)
			}
		}()
	})
	e := cli.Env{Stdout: &out, Stderr: &waiting}
	began := time.Now()
	status := e.Run(t.Context(), []string{"migrate", "rollback", "--state-dir", dir, "--bpffs", pins}, migrate.Commands(e)...)
	if p, err := takeover.Load(dir); status != 0 || p != nil || err != nil {
		t.Errorf("status %d after %s, %s, progress %v, %v", status, time.Since(began), &out, p, err)
	}
	for _, path := range confs {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
