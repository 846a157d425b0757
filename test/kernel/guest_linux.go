// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suite is a package whose tests run in the guest.
type suite struct {
	name, pkg string
	tests     string // which tests run, as -test.run takes it; all for ""
	flags     string // further flags
	// since and before are the versions of Linux, as "6.4", from which and up to which the suite runs; "" is no limit.
	since, before string
}

// hooks is the version of Linux that has BPF programs of netfilter.
const hooks = "6.4"

// suites lists all suites.
var suites = []suite{
	{name: "programs", pkg: "./linux/loader", tests: "^TestVerifiedInstructions$"},
	{name: "loader", pkg: "./linux/loader"},
	{name: "probe", pkg: "./linux/probe"},
	{name: "link", pkg: "./linux/link"},
	{name: "linux", pkg: "./linux", flags: "-test.parallel=2"},
	{name: "denymap", pkg: "./linux/denymap"},
	{name: "xdp", pkg: "./linux/xdp"},
	{name: "corpus", pkg: "./test/corpus", tests: "^TestCorpus$"},
	{name: "path", pkg: "./test/path", since: hooks},
	// Without programs of netfilter, filters decide in the stack. TestCoverage lists the blocks of both.
	{name: "path-filters", pkg: "./test/path", tests: "^TestPath$|^TestScarceTable$|^TestWritingAgent$", flags: "-filters", before: hooks},
}

// runsOn reports whether the suite runs on a kernel with this release, as "6.1.0-41-cloud-amd64".
func (s suite) runsOn(release string) (bool, error) {
	var kernel, since, before [2]int
	for text, v := range map[string]*[2]int{release: &kernel, cmp.Or(s.since, "0.0"): &since, cmp.Or(s.before, "999.0"): &before} {
		if n, err := fmt.Sscanf(text, "%d.%d", &v[0], &v[1]); n != 2 {
			return false, fmt.Errorf("release %q of a kernel: %w", text, err)
		}
	}
	return slices.Compare(kernel[:], since[:]) >= 0 && slices.Compare(kernel[:], before[:]) < 0, nil
}

// args returns the arguments of the suite.
func (s suite) args() string {
	if s.tests == "" {
		return s.flags
	}
	return strings.TrimSpace("-test.run=" + s.tests + " " + s.flags)
}

// choose returns the named suites, all for "", restricted to the tests that match.
func choose(names, tests string) ([]suite, error) {
	chosen := slices.Clone(suites)
	if names != "" {
		list := strings.Split(names, ",")
		chosen = slices.DeleteFunc(chosen, func(s suite) bool { return !slices.Contains(list, s.name) })
		if len(chosen) != len(list) {
			return nil, fmt.Errorf("of the suites %q there are %d", list, len(chosen))
		}
	}
	for i := range chosen {
		if tests != "" {
			chosen[i].tests = tests
		}
	}
	return chosen, nil
}

// part is what one guest runs.
type part struct {
	name   string // suffix of the name of the guest
	cpus   string // of the guest
	suites []suite
}

// divide divides suites between two guests, the one that takes longer first. The tests of linux take as long as all others.
// Most of them wait, and do not need two CPUs, which cost each other a third of their time without KVM. With two, QEMU 7.2 may
// also run an instruction that the kernel has patched meanwhile ("Oops: int3", Red Hat bug 2216496): these tests, which make
// many network namespaces, met it. Other suites need two CPUs at once.
func divide(all []suite) (parts []part) {
	isLinux := func(s suite) bool { return s.name == "linux" }
	if at := slices.IndexFunc(all, isLinux); at >= 0 {
		parts = append(parts, part{"-linux", "1", all[at : at+1]})
	}
	if rest := slices.DeleteFunc(slices.Clone(all), isLinux); len(rest) > 0 {
		parts = append(parts, part{"", "2", rest})
	}
	return parts
}

// modules are loaded in this order. Modules that are built into the kernel are skipped.
var modules = []string{"veth", "ifb", "sch_ingress", "sch_tbf", "cls_bpf", "cls_u32", "act_mirred",
	"crc32c_generic", "libcrc32c", "nfnetlink", "nf_defrag_ipv4", "nf_defrag_ipv6", "nf_conntrack", "nf_conntrack_netlink", "nf_nat",
	"nf_tables", "nft_ct", "nft_fib", "nft_fib_ipv4", "nft_fib_ipv6", "nft_fib_inet", "nft_chain_nat", "nft_nat", "nft_masq",
	"x_tables", "nft_compat", "xt_bpf", "udp_tunnel", "ip6_udp_tunnel", "ip_tunnel", "fou", "l2tp_core", "l2tp_netlink", "sctp", "vxlan", "llc", "stp",
	"bridge", "br_netfilter", "garp", "mrp", "8021q", "inet_diag", "tcp_diag", "udp_diag"}

// build makes the initramfs of a guest.
func (g guests) build(ctx context.Context, k image, p part, dir string) (string, error) {
	root := filepath.Join(dir, "root")
	if err := os.RemoveAll(root); err != nil {
		return "", err
	}
	for _, d := range []string{"proc", "sys", "tmp", "run", "dev", "modules", "suites"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	if err := g.compile(ctx, "build", "-o", filepath.Join(root, "init"), "./test/kernel/guest"); err != nil {
		return "", err
	}
	var list strings.Builder
	for _, s := range p.suites {
		if runs, err := s.runsOn(k.release); err != nil || !runs {
			if err != nil {
				return "", err
			}
			continue
		}
		if err := g.compile(ctx, "test", "-c", "-o", filepath.Join(root, "suites", s.name), s.pkg); err != nil {
			return "", err
		}
		if err := copyData(s.pkg, filepath.Join(root, "data", s.name)); err != nil {
			return "", err
		}
		fmt.Fprintf(&list, "%s %s\n", s.name, s.args())
	}
	if err := os.WriteFile(filepath.Join(root, "suites", "list"), []byte(list.String()), 0o644); err != nil {
		return "", err
	}
	for _, name := range tools {
		if err := copyTool(g.tools, name, root); err != nil {
			return "", err
		}
	}
	for n, m := range modules {
		if err := copyModule(ctx, k, m, filepath.Join(root, "modules", fmt.Sprintf("%02d-%s.ko", n, m))); err != nil {
			return "", err
		}
	}
	return pack(ctx, root, filepath.Join(dir, "initramfs"))
}

// copyData copies the files that a package's tests may read. It leaves out Go files, which would
// form a package in the guest.
func copyData(pkg, to string) error {
	return filepath.WalkDir(pkg, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(pkg, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && name != "testdata" && !strings.HasPrefix(name, "testdata/") {
				return fs.SkipDir // another package
			}
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		if strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o644)
	})
}

func (g guests) compile(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+g.arch.name)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

// copyModule finds a module of a kernel and writes it uncompressed. A missing module is built in;
// otherwise the guest reports it.
func copyModule(ctx context.Context, k image, name, to string) error {
	var found string
	err := filepath.WalkDir(k.modules, func(path string, _ fs.DirEntry, err error) error {
		if base := filepath.Base(path); err == nil && (base == name+".ko" || base == name+".ko.xz") {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		return err
	}
	if strings.HasSuffix(found, ".ko") {
		text, err := os.ReadFile(found)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	}
	text, err := exec.CommandContext(ctx, "xz", "-dc", "--", found).Output()
	if err != nil {
		return fmt.Errorf("unpack module %s: %w", found, err)
	}
	return os.WriteFile(to, text, 0o644)
}

// pack makes an initramfs of a directory.
func pack(ctx context.Context, root, to string) (string, error) {
	var names bytes.Buffer
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		names.WriteString(name + "\n")
		return err
	})
	if err != nil {
		return "", err
	}
	out, err := os.Create(to)
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, "cpio", "--create", "--format=newc", "--quiet", "--owner=0:0")
	cmd.Dir, cmd.Stdin, cmd.Stdout = root, &names, out
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pack initramfs: %w\n%s", err, stderr.String())
	}
	return to, out.Close()
}

// boot runs the guest and returns its last report, which is the summary. The file console then
// holds its whole output.
func (g guests) boot(ctx context.Context, k image, p part, initramfs, console string) (string, error) {
	log, err := os.Create(console)
	if err != nil {
		return "", err
	}
	defer log.Close()
	budget := g.timeout - spare
	cmd := exec.CommandContext(ctx, g.arch.qemu[0], slices.Concat(g.arch.qemu[1:], []string{
		"-nodefaults", "-no-reboot", "-nographic", "-serial", "stdio", "-smp", p.cpus, "-m", "2048",
		"-kernel", k.vmlinuz, "-initrd", initramfs, "-append", "console=" + g.arch.console + " quiet panic=-1 " + g.arch.params + " -- " + budget.String()})...)
	said, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start qemu: %w", err)
	}
	summary := g.follow(k.release+p.name, io.TeeReader(said, log))
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("guest of %s: %w\n%s", k.release+p.name, errors.Join(err, ctx.Err()), explain(console))
	}
	if !strings.HasPrefix(summary, "passed") {
		return "", fmt.Errorf("guest of %s did not pass:\n%s", k.release+p.name, explain(console))
	}
	return k.release + p.name + " " + summary, nil
}

// follow prints the reports of a guest until it ends, and returns the last one.
func (g guests) follow(name string, said io.Reader) (summary string) {
	lines := bufio.NewReader(said)
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		_, report, ok := strings.Cut(line, "guest: ") // the firmware writes escape sequences before the first report
		_, program, counted := strings.Cut(line, ": program ")
		switch {
		case ok:
			fmt.Fprintf(g.out, "%s: %s\n", name, report)
			summary = report
		case strings.HasPrefix(strings.TrimSpace(line), "--- SKIP"):
			fmt.Fprintf(g.out, "%s: %s\n", name, strings.TrimSpace(line))
		case counted:
			fmt.Fprintf(g.out, "%s: program %s\n", name, program)
		case g.verbose:
			fmt.Fprintf(g.out, "%s| %s\n", name, line)
		}
		if err != nil {
			return summary
		}
	}
}

// explain returns the output of a guest from its first sign of failure, or else the end of its
// output.
func explain(console string) string {
	text, err := os.ReadFile(console)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.ReplaceAll(string(text), "\r", ""), "\n")
	from := slices.IndexFunc(lines, func(l string) bool {
		return strings.Contains(l, "--- FAIL") || strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ")
	})
	if from < 0 {
		from = len(lines) - 200
	}
	lines = lines[max(0, from-20):]
	return strings.Join(lines[:min(len(lines), 1000)], "\n") + "\n(all of it: " + console + ")"
}
