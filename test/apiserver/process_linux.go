// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// process is one of the server's programs.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed
}

// launch starts a program with its output in a log.
func (s *Server) launch(name string, args ...string) (*process, error) {
	p := &process{log: filepath.Join(s.dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(filepath.Join(s.bin, name), args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not for Ctrl-C
	if s.cfg.NS == nil {
		// The process ends with the test, however that ends. In a namespace it would end with the thread that
		// entered it.
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error)
	go func() {
		defer close(p.ended)
		// It ends with the thread that starts it, so that thread stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.inside(p.cmd.Start)
		if started <- err; err == nil {
			p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// kill ends the process, also if it is halted.
func (p *process) kill() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// tail returns the end of the log.
func (p *process) tail() string {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
