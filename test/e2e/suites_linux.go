// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// least is the number of cases of the suites of others that pass in a run without -focus. A version of Kubernetes that
// renames its tests would otherwise run fewer of them, unnoticed.
var least = map[string]int{"netpol": 45, "conformance": 47, "network": 78, "cnp": 24, "again": 45}

// networkPolicies leave out SCTP, which needs a kernel module that few machines have.
var networkPolicies = expressions{focus: `\[Feature:NetworkPolicy\]`, skip: `Feature:SCTPConnectivity`}

// expressions are regular expressions of test names to run and to skip. The label, if set, is that of the cases to run.
type expressions struct{ focus, skip, label string }

// upstream returns the expressions of a suite of Kubernetes itself.
func (l *lab) upstream(name string) expressions {
	switch name {
	case "conformance":
		return expressions{focus: `\[sig-network\].*\[Conformance\]`}
	case "network":
		return expressions{label: "sig-network", skip: skipNetwork(l.ip, kernelHasSCTP())}
	default:
		return networkPolicies
	}
}

// omission is a group of cases of sig-network that the suite network leaves out, and why. All others run, also those of a
// later version of Kubernetes.
type omission struct {
	// cases is a regular expression of their names.
	cases, why string
}

var omissions = []omission{
	{`\[Conformance\]`, "the suite conformance runs them"},
	{`\[Feature:NetworkPolicy\]`, "the suite netpol runs them"},
	{`\[Feature:LoadBalancer\]`, "they need a load balancer outside of the cluster"},
	{`\[Feature:Ingress\]`, "they change the defaults that the API server gives to Ingress objects, and send no packet"},
	{`\[Feature:Networking-(IPv4|IPv6|DNS)\]|\[Provider:GCE\]`, "they need the Internet"},
	{`\[Feature:Networking-Performance\]`, "it measures what iperf sends, which the image lacks; make bench-datapath measures"},
	{`\[Feature:PerformanceDNS\]`, "it loads the API server and the DNS server with 10,000 Services"},
	{`\[Feature:KubeProxyNFAcct\]`, "it reads a counter of kube-proxy's iptables mode; the mode here is nftables"},
	{`\[Feature:KubeProxyDaemonSetMigration\]`, "they upgrade nodes on GCE"},
	{`\[Disruptive\]`, "they restart kube-proxy and the API server as pods, and these are programs here, or need SSH; the suite own loses nodes and the API server"},
	{`DNS should support configurable pod resolv.conf`, "its DNS server is CoreDNS with the plugin hosts, which the image lacks; a conformance case is similar"},
	{`DNS configMap nameserver`, "they configure CoreDNS by a ConfigMap, and it is a program without one here"},
}

// onlySCTP are the cases of the suite network that need SCTP in the kernel.
var onlySCTP = omission{`\[Feature:SCTPConnectivity\]`, "this kernel has no SCTP"}

// onlyDual are the cases of the suite network for dual-stack clusters.
var onlyDual = omission{`\[Feature:IPv6DualStack\]`, "the cluster has one IP version"}

// leftOut returns the cases that the suite network leaves out in a cluster.
func leftOut(ip string, sctp bool) []omission {
	all := slices.Clone(omissions)
	if !sctp {
		all = append(all, onlySCTP)
	}
	if ip != "dual" {
		all = append(all, onlyDual)
	}
	return all
}

// skipNetwork returns the expression of the cases that the suite network leaves out.
func skipNetwork(ip string, sctp bool) string {
	var words []string
	for _, o := range leftOut(ip, sctp) {
		words = append(words, o.cases)
	}
	return strings.Join(words, "|")
}

// titles are the names of the suites in the line of totals.
var titles = map[string]string{"netpol": "netpol", "conformance": "sig-network conformance",
	"network": "sig-network beyond conformance", "cnp": "cnp-conformance", "own": "own", "again": "netpol again"}

// suiteNames are the suites in the order in which they run.
var suiteNames = []string{"netpol", "conformance", "network", "cnp", "own", "again"}

// testCase is a test case in JUnit form.
type testCase struct {
	Name    string  `xml:"name,attr"`
	Class   string  `xml:"classname,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure *detail `xml:"failure"`
	Error   *detail `xml:"error"`
	Skipped *detail `xml:"skipped"`
}

type detail struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func (c testCase) failed() bool { return c.Failure != nil || c.Error != nil }

// results holds the executed cases, by suite.
type results map[string][]testCase

// runSuites runs the requested suites one after the other. After the cases of this repository, Isthmus is installed
// again.
func (l *lab) runSuites(ctx context.Context, before map[string]string) (results, error) {
	all := make(results)
	for _, name := range suiteNames {
		if !slices.Contains(l.suites, name) {
			continue
		}
		run := l.runUpstream
		switch name {
		case "cnp":
			run = l.runCNP
		case "own":
			run = func(context.Context, string) ([]testCase, error) { return l.runOwn(ctx, before), nil }
		}
		cases, err := run(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = cases
	}
	return all, nil
}

// runUpstream runs cases of Kubernetes' suite and reads its report.
func (l *lab) runUpstream(ctx context.Context, name string) ([]testCase, error) {
	report := filepath.Join(l.report, name+".xml")
	if err := os.Remove(report); err != nil && !missing(err) {
		return nil, err
	}
	u := l.upstream(name)
	args := []string{"--net=" + l.fabric.Path(), "--", filepath.Join(l.bin, "e2e.test"), "--kubeconfig=" + l.control.admin,
		"--provider=skeleton", fmt.Sprintf("--num-nodes=%d", len(l.nodes)), "--kubectl-path=" + filepath.Join(l.bin, "kubectl"), "--disable-log-dump",
		"--ginkgo.no-color", "--ginkgo.timeout=90m", "--ginkgo.junit-report=" + report}
	if u.skip != "" {
		args = append(args, "--ginkgo.skip="+u.skip)
	}
	if u.label != "" {
		args = append(args, "--ginkgo.label-filter="+u.label)
	}
	focus := u.focus
	if l.focus != "" {
		// Labels follow the names.
		focus = l.focus + ".*" + strings.TrimPrefix(u.focus, `\[sig-network\].*`)
	}
	args = append(args, "--ginkgo.focus="+focus)
	log, err := os.Create(filepath.Join(l.report, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	say("running %s; its log is %s", titles[name], log.Name())
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Stdout, cmd.Stderr = log, log
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		return nil, fmt.Errorf("run e2e.test: %w", err)
	}
	return readReport(report)
}

// readReport reads the executed cases from a report of Ginkgo.
func readReport(path string) ([]testCase, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read report: %w: look at the log beside it", err)
	}
	var report struct {
		Suites []struct {
			Cases []testCase `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("read report %s: %w", path, err)
	}
	var ran []testCase
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			// Cases that the expressions exclude are reported as skipped without a reason. Setup
			// and teardown of the suite are not cases.
			left := c.Skipped != nil && (c.Skipped.Message == "" || c.Skipped.Message == "skipped")
			if node := strings.HasPrefix(c.Name, "[It] "); !left && (node || c.failed()) {
				c.Name = strings.TrimPrefix(c.Name, "[It] ")
				ran = append(ran, c)
			}
		}
	}
	if len(ran) == 0 {
		return nil, fmt.Errorf("report %s has no case that ran", path)
	}
	return ran, nil
}

// print lists failed and skipped cases, and the totals in one line. It reports whether a case failed, or without a focus
// too few passed.
func (r results) print(out io.Writer, suites []string, focus string) bool {
	any := false
	var totals []string
	for _, name := range suiteNames {
		if !slices.Contains(suites, name) {
			continue
		}
		passed, failed := 0, 0
		for _, c := range r[name] {
			switch {
			case c.failed():
				failed++
				fmt.Fprintf(out, "failed: %s: %s\n", titles[name], c.Name)
			case c.Skipped != nil:
				fmt.Fprintf(out, "skipped: %s: %s: %s\n", titles[name], c.Name, c.Skipped.Message)
			default:
				passed++
			}
		}
		if focus == "" && passed < least[name] {
			fmt.Fprintf(out, "failed: %s: %d cases passed, want at least %d: see the skipped cases, and the expressions that choose cases\n",
				titles[name], passed, least[name])
			any = true
		}
		any = any || failed > 0 || passed == 0
		totals = append(totals, fmt.Sprintf("%s passed=%d failed=%d", titles[name], passed, failed))
	}
	if slices.Contains(suites, "cnp") {
		printCNP(out, r["cnp"])
	}
	fmt.Fprintln(out, "e2e: "+strings.Join(totals, "; "))
	return any
}

// write writes all cases to one JUnit report.
func (r results) write(path string) error {
	type suite struct {
		Name  string     `xml:"name,attr"`
		Tests int        `xml:"tests,attr"`
		Fails int        `xml:"failures,attr"`
		Cases []testCase `xml:"testcase"`
	}
	var all struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []suite  `xml:"testsuite"`
	}
	for _, name := range suiteNames {
		s := suite{Name: titles[name], Tests: len(r[name]), Cases: r[name]}
		for _, c := range s.Cases {
			if c.failed() {
				s.Fails++
			}
		}
		if s.Tests > 0 {
			all.Suites = append(all.Suites, s)
		}
	}
	text, err := xml.MarshalIndent(all, "", " ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append([]byte(xml.Header), text...), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// table writes all cases as a Markdown table.
func (r results) table(path string) error {
	var b strings.Builder
	b.WriteString("| suite | case | result | seconds |\n|---|---|---|---|\n")
	for _, name := range suiteNames {
		for _, c := range r[name] {
			result := "passed"
			if c.failed() {
				result = "failed"
			} else if c.Skipped != nil {
				result = "skipped: " + c.Skipped.Message
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %.1f |\n", titles[name], strings.ReplaceAll(c.Name, "|", "\\|"), result, c.Seconds)
		}
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// skipped is the error of a case that this cluster cannot run: the reason.
type skipped string

func (s skipped) Error() string { return string(s) }

// timed runs a case of this repository.
func timed(name string, f func() error) testCase {
	say("own: %s", name)
	began := time.Now()
	c := testCase{Name: name, Class: "isthmus"}
	var why skipped
	if err := f(); errors.As(err, &why) {
		say("own: skipped: %v", why)
		c.Skipped = &detail{Message: string(why)}
	} else if err != nil {
		say("own: failed: %v", err)
		c.Failure = &detail{Message: name, Text: err.Error()}
	}
	c.Seconds = time.Since(began).Seconds()
	return c
}
