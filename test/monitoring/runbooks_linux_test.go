// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/console"
)

// operator follows sections of docs/operate/alerts.md on a cluster that is broken. The alert fires in a Prometheus that
// scrapes the cluster. The commands of its section print what the section shows, and the alert ends with the remedy.
type operator struct {
	t        *testing.T
	server   prometheus
	bin      string
	sections map[string]section
}

// breakage is a way to break a cluster so that an alert fires.
type breakage struct {
	alert string
	// at is the node where commands of the section run; log is the log that kubectl would print, by default that of
	// the agent there.
	at     *cluster.Node
	log    string
	breaks func()
	remedy func()
}

// followed counts the sections that a test has followed.
var followed = make(map[string]int)

// leftOut returns the exit status of all tests: they fail if no test has followed the section of some alert.
func leftOut(status int) int {
	if status != 0 || testing.Short() || os.Getuid() != 0 || flag.Lookup("test.run").Value.String() != "" {
		return status
	}
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if followed[m[1]] == 0 {
			fmt.Fprintf(os.Stderr, "no test has followed the section %s of %s\n", m[1], runbooks)
			status = 1
		}
	}
	fmt.Printf("runbooks: %d sections followed\n", len(followed))
	return status
}

// hurry makes seconds of the minutes of rules and queries, so that alerts fire and end while a test waits.
func hurry(rules string) string {
	rules = regexp.MustCompile(`\b(\d+)m\b`).ReplaceAllString(rules, "${1}s")
	return strings.NewReplacer("for: 6h", "for: 6s", "interval: 30s", "interval: 1s", "> 900)", "> 15)", "> 600)", "> 10)").Replace(rules)
}

// newOperator starts a Prometheus with the rules of the chart, in a hurry.
func newOperator(t *testing.T, jobs map[string][]string) *operator {
	t.Helper()
	raw, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(hurry(string(raw))), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	return &operator{t: t, server: startPrometheus(ctx, t, file, jobs), bin: commands.Dir(t, "../.."), sections: sections(t)}
}

// firing returns how many alerts of a name fire.
func (o *operator) firing(alert string) int {
	o.t.Helper()
	n, err := o.server.ask(o.t.Context(), fmt.Sprintf("ALERTS{alertname=%q, alertstate=\"firing\"}", alert))
	if err != nil {
		o.t.Fatal(err)
	}
	return n
}

// until waits until an alert fires, or does not.
func (o *operator) until(alert string, fires bool) time.Duration {
	o.t.Helper()
	began := time.Now()
	for o.firing(alert) > 0 != fires {
		if time.Since(began) > 2*time.Minute {
			o.t.Fatalf("%s: it must fire: %t, but for two minutes it does not", alert, fires)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return time.Since(began).Round(100 * time.Millisecond)
}

// follow breaks the cluster, and does what the section of the alert says.
func (o *operator) follow(b breakage) {
	o.t.Helper()
	if b.log == "" {
		b.log = b.at.Log()
	}
	s := o.sections[b.alert]
	if len(s.commands)+len(s.queries) == 0 {
		o.t.Errorf("%s: section %s has no command", runbooks, b.alert)
	}
	followed[b.alert]++
	quiet := o.until(b.alert, false) // an earlier breakage may have fired it, too
	b.breaks()
	fired := o.until(b.alert, true)
	for _, c := range s.commands {
		o.run(b, c)
	}
	for _, q := range s.queries {
		n, err := o.server.ask(o.t.Context(), hurry(q))
		if err != nil || n == 0 {
			o.t.Errorf("%s: %s: %d values, %v", b.alert, q, n, err)
		}
	}
	b.remedy()
	o.t.Logf("%s fired after %s, and ended %s after the remedy (waited %s)\n\n", b.alert, fired, o.until(b.alert, false), quiet)
}

// asOnNode are the commands of a node: isthmusctl finds the socket of the agent, and kubectl prints a log, which it
// would read from a kubelet.
const asOnNode = `
isthmusctl() { "$BIN/isthmusctl" "$@" --socket "$SOCKET"; }
kubectl() { case " $* " in *" logs "*) cat "$LOG";; *) echo "there is no API server here" >&2; return 1;; esac; }
`

// run runs a command until it prints what the page shows.
func (o *operator) run(b breakage, c console.Command) {
	o.t.Helper()
	var out []byte
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		cmd := exec.CommandContext(o.t.Context(), "bash", "-c", asOnNode+c.Text)
		cmd.Env = append(os.Environ(), "BIN="+o.bin, "LOG="+b.log)
		in := func(f func() error) error { return f() }
		if b.at != nil {
			cmd.Env, in = append(cmd.Env, "SOCKET="+b.at.Socket()), b.at.NS.Do
		}
		err := in(func() (err error) {
			out, err = cmd.CombinedOutput()
			return err
		})
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			o.t.Fatal(err)
		}
		if console.Matches(c.Want, string(out)) {
			o.t.Logf("$ %s\n%s", c.Text, out)
			return
		}
		if time.Now().After(deadline) {
			o.t.Errorf("%s: $ %s\n%s\nthe page shows\n%s", b.alert, c.Text, out, strings.Join(c.Want, "\n"))
			return
		}
	}
}

// process is a program that runs beside the agents.
type process struct {
	t    *testing.T
	path string
	log  string
	in   func(func() error) error
	cmd  *exec.Cmd
}

// start starts the program with some flags; stop ends it.
func (p *process) start(args ...string) {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(p.path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.in(p.cmd.Start); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) stop() {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.cmd = nil
	if p.t.Failed() {
		text, _ := os.ReadFile(p.log)
		p.t.Logf("%s:\n%s", p.path, bytes.TrimSpace(text))
	}
}
