// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Machine is a Windows node under Wine.
type Machine struct {
	dir, bin string
	NS       *netns.NS
	ownNS    bool
	prefix   *prefix
	emulator *process
	agent    *process
}

// process is a program that runs in the background of a test.
type process struct {
	cmd  *exec.Cmd
	done chan error
}

func (p *process) stop(sig syscall.Signal) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-p.done:
		return err
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("%s did not end within %s", p.cmd.Args[0], patience), p.cmd.Process.Kill())
	}
}

// New makes a machine in an empty directory, with the executables of Build in bin, and a network namespace. It
// starts no process.
func New(ctx context.Context, dir, bin string) (*Machine, error) {
	ns, err := netns.Prepared(filepath.Join(dir, "ns"))
	if err != nil {
		return nil, err
	}
	m, err := Enter(ctx, ns, dir, bin)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	m.ownNS = true
	return m, nil
}

// Enter makes a machine in a namespace that the caller owns.
func Enter(ctx context.Context, ns *netns.NS, dir, bin string) (*Machine, error) {
	m := &Machine{dir: dir, bin: bin, NS: ns}
	var err error
	if m.prefix, err = newPrefix(ctx, m.File(prefixDir), bin, ns); err != nil {
		return nil, err
	}
	return m, nil
}

// File names in the directory of a machine.
const (
	prefixDir   = "prefix"
	hnsPID      = "hns.pid"
	controlFile = "hns.sock"
)

// Remove ends the remaining processes of a machine, which it finds by the machine's files. The files stay.
func Remove(dir string) error {
	var errs []error
	if path := filepath.Join(dir, prefixDir); exists(path) {
		p := &prefix{dir: path}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, args := range [][]string{{"-k"}, {"-w"}} {
			_ = p.server(ctx, args...).Run() // -k of a server that has ended is an error, and fine
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, hnsPID)); err == nil {
		errs = append(errs, endEmulator(strings.TrimSpace(string(text))))
	}
	return errors.Join(errs...)
}

// endEmulator ends the emulator with a process ID, unless another process has that ID now.
func endEmulator(number string) error {
	pid, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if name, err := os.ReadFile("/proc/" + number + "/comm"); err != nil || strings.TrimSpace(string(name)) != "hnsemu" {
		return nil
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// Close ends everything on the machine and removes it.
func (m *Machine) Close() error {
	var errs []error
	if m.agent != nil {
		_ = m.KillAgent() // it may have ended
	}
	errs = append(errs, m.StopEmulator(), m.prefix.close())
	if m.ownNS {
		errs = append(errs, m.NS.Close())
	}
	return errors.Join(errs...)
}

// File is the path of a file of the machine.
func (m *Machine) File(name string) string { return filepath.Join(m.dir, name) }

// start runs a command in the machine's namespace, with its output in a file.
func (m *Machine) start(cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.OpenFile(m.File(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.NS.Do(cmd.Start); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan error, 1)}
	go func() { p.done <- cmd.Wait() }()
	return p, nil
}

// StartEmulator starts HNS of a version, with the objects of an earlier one and further flags of hnsemu.
func (m *Machine) StartEmulator(v hns.Version, more ...string) error {
	_ = os.Remove(m.ControlSocket())
	cmd := exec.Command(filepath.Join(m.bin, "hnsemu"), append([]string{"--hns", v.String(), "--control", m.ControlSocket(),
		"--state", m.File("hns.json"), "--calls", m.File("calls.jsonl")}, more...)...)
	p, err := m.start(cmd, "hns.log")
	if err != nil {
		return fmt.Errorf("start the hns emulator: %w", err)
	}
	m.emulator = p
	if err := os.WriteFile(m.File(hnsPID), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		return err
	}
	return m.wait(m.File("hns.log"), p, func() bool { _, err := m.Control("/dump", nil); return err == nil })
}

// StopEmulator stops HNS; its objects are kept.
func (m *Machine) StopEmulator() error {
	defer func() { m.emulator = nil }()
	return m.emulator.stop(syscall.SIGTERM)
}

// Forget removes the stored state of HNS and the agent, while neither runs.
func (m *Machine) Forget() error {
	for _, name := range []string{"hns.json", "calls.jsonl", "hns.log", "agent.log", "cni", "ipam", "prefix/drive_c/ProgramData/isthmus", "prefix/drive_c/var"} {
		if err := os.RemoveAll(m.File(name)); err != nil {
			return err
		}
	}
	return nil
}

// Drive is the path of the machine's drive C.
func (m *Machine) Drive() string { return m.File(filepath.Join(prefixDir, "drive_c")) }

// ControlSocket is the path of the emulator's control socket.
func (m *Machine) ControlSocket() string { return m.File(controlFile) }

// Control sends a request to the emulator, without the agent.
func (m *Machine) Control(path string, query url.Values) (string, error) {
	return m.Post(path+"?"+query.Encode(), "")
}

// Post is Control with a request body.
func (m *Machine) Post(path, body string) (string, error) {
	client := http.Client{Timeout: patience / 3, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", m.ControlSocket())
		}}}
	r, err := client.Post("http://hns"+path, "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("hns emulator: %s: %s", path, strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// Command makes a command that runs an executable; Output runs it.
func (m *Machine) Command(ctx context.Context, exe string, args ...string) *exec.Cmd {
	return m.prefix.command(ctx, exe, args...)
}

// Output runs a command on the machine and returns what it wrote.
func (m *Machine) Output(cmd *exec.Cmd) (string, error) { return m.prefix.output(cmd) }

// GoTest runs go test for Windows with flags and packages. The programs of the tests run on the machine. It returns what
// go test -json prints; that tests fail is no error.
func (m *Machine) GoTest(ctx context.Context, top string, args []string, env ...string) ([]byte, error) {
	run := m.File("run-test")
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net='%s' -- '%s' \"$@\"\n", m.NS.Path(), m.prefix.wine)
	if err := os.WriteFile(run, []byte(script), 0o700); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1", "-exec=" + run}, args...)...)
	cmd.Dir = top
	cmd.Env = append(append(m.prefix.environment(), "CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64"), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errOut, 2*time.Second // background processes of Wine may hold pipes
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil || errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a test failed
	}
	if err == nil && out.Len() == 0 {
		err = errors.New("it ran no test")
	}
	if err != nil {
		return nil, fmt.Errorf("go test %s: %w\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return out.Bytes(), nil
}

// agentHTTP is the address of the agent's metrics and health.
const agentHTTP = "127.0.0.1:9470"

// StartAgent starts isthmus-agent.exe with the default state directory, and waits until it is ready.
func (m *Machine) StartAgent(node, manifests string, more ...string) error {
	args := append([]string{"--node-name", node, "--manifests", Path(manifests), "--log-level", "debug", "--http-address", agentHTTP}, more...)
	before := m.logged()
	err := m.startAgent(args)
	if errors.Is(err, errEnded) && m.logged() == before {
		// Seen once: the process ended with status 1 and had written nothing. The cause is not known. An agent writes why it ends.
		fmt.Fprintln(os.Stderr, "wine: isthmus-agent.exe has ended and wrote nothing; it is started once more:", err)
		err = m.startAgent(args)
	}
	return err
}

// logged is the size of the agent's log in bytes.
func (m *Machine) logged() int64 {
	info, err := os.Stat(m.File("agent.log"))
	if err != nil {
		return 0
	}
	return info.Size()
}

func (m *Machine) startAgent(args []string) error {
	p, err := m.start(m.prefix.command(context.Background(), filepath.Join(m.bin, "isthmus-agent.exe"), args...), "agent.log")
	if err != nil {
		return fmt.Errorf("start isthmus-agent.exe: %w", err)
	}
	m.agent = p
	return m.wait(m.File("agent.log"), p, func() bool { _, err := m.Get("/readyz"); return err == nil })
}

// StopAgent does what Ctrl-C does.
func (m *Machine) StopAgent() error {
	defer func() { m.agent = nil }()
	return m.agent.stop(syscall.SIGINT)
}

// KillAgent kills the agent.
func (m *Machine) KillAgent() error {
	defer func() { m.agent = nil }()
	if err := m.agent.cmd.Process.Kill(); err != nil {
		return err
	}
	<-m.agent.done
	return nil
}

// Get reads a page of the agent's HTTP server.
func (m *Machine) Get(path string) (string, error) {
	r, err := m.NS.HTTPClient(patience / 3).Get("http://" + agentHTTP + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, text)
	}
	return string(text), err
}

// errEnded says that a process has ended before its condition holds.
var errEnded = errors.New("ended")

// wait polls a condition while a process runs.
func (m *Machine) wait(log string, p *process, so func() bool) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if so() {
			return nil
		}
		var err error
		select {
		case err = <-p.done:
			p.done <- err
			err = fmt.Errorf("%s %w: %v", p.cmd.Args[0], errEnded, err)
		default:
			if time.Now().Before(deadline) {
				continue
			}
			err = fmt.Errorf("%s is not ready after %s", p.cmd.Args[0], patience)
		}
		text, _ := os.ReadFile(log)
		return fmt.Errorf("%w\n%s", err, text)
	}
}
