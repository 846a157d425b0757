// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// conformance runs isthmus-conformance.exe between two pods, while no agent runs.
func (s *smoke) conformance(ctx context.Context) error {
	cmd := s.exe(ctx, "isthmus-conformance.exe", s.conformanceArgs()...)
	text, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "conformance: ") || strings.HasPrefix(line, "packets: ") || strings.HasPrefix(line, "!") {
			fmt.Fprint(s.w, "          ", line)
		}
	}
	if cmd.ProcessState != nil {
		s.report.Conformance = cmd.ProcessState.ExitCode()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return errors.New("HNS is not as Isthmus assumes: see report.txt")
	}
	if err != nil {
		return fmt.Errorf("run isthmus-conformance.exe: %w: %s", err, text)
	}
	return nil
}

func (s *smoke) conformanceArgs() []string {
	return []string{"--network", s.network, "--address", s.host4(200).String(), "--pods", s.namespaces[0] + "," + s.namespaces[1], "--out", s.out,
		"--packet-time", s.packetTime.String()}
}

// status prints the status of the agent.
func (s *smoke) status(ctx context.Context) error {
	text, err := s.exe(ctx, "isthmusctl.exe", "status", "-o", "wide").CombinedOutput()
	if writing := os.WriteFile(filepath.Join(s.out, "status.txt"), text, 0o644); writing != nil {
		return writing
	}
	if err != nil {
		return fmt.Errorf("run isthmusctl.exe status: %w: %s", err, text)
	}
	return nil
}

// clean removes the objects of this run, in whichever step it ended.
func (s *smoke) clean(ctx context.Context) error {
	var errs []error
	if s.agent != nil {
		// DEL of a pod that is not attached succeeds.
		for i := range s.namespaces {
			if err := s.cni().DelNetworkList(ctx, s.conf(), s.runtime(i)); err != nil {
				errs = append(errs, fmt.Errorf("DEL of pod p%d: %w", i, err))
			}
		}
	}
	errs = append(errs, s.stopAgent())
	if s.mode == "nat" {
		errs = append(errs, s.removePair(ctx), s.removeNetwork(ctx))
		return errors.Join(append(errs, s.cleanHost())...)
	}
	// --force: a pod of a failed run may still be attached. Its endpoint goes with the network.
	cmd := s.exe(ctx, "isthmus-agent.exe", "uninstall", "--force", "--hns-network", s.network, "--state-dir", filepath.Join(s.work, "state"))
	if text, err := cmd.CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("run isthmus-agent.exe uninstall: %w: %s", err, text))
	}
	return errors.Join(append(errs, s.cleanHost())...)
}

// cleanHost removes namespaces and files.
func (s *smoke) cleanHost() error {
	var errs []error
	for _, id := range s.namespaces {
		errs = append(errs, s.host.RemoveNamespace(id))
	}
	if s.work != "" {
		errs = append(errs, os.RemoveAll(s.work))
	}
	return errors.Join(errs...)
}

// left counts the remaining objects, and removes the network.
func (s *smoke) left(ctx context.Context) error {
	id, err := s.findNetwork(ctx)
	if err != nil || id == "" {
		return err
	}
	s.report.Left++
	endpoints, err := s.host.Endpoints(ctx, id)
	if err == nil {
		s.report.Left += len(endpoints)
	}
	return errors.Join(fmt.Errorf("network %s was still there, with %d endpoints", s.network, len(endpoints)), err, s.removeNetwork(ctx))
}

// removeNetwork removes the network of this run with its endpoints, if it is there.
func (s *smoke) removeNetwork(ctx context.Context) error {
	id, err := s.findNetwork(ctx)
	if err != nil || id == "" {
		return err
	}
	if err := s.host.DeleteNetwork(ctx, id); err != nil && !errors.Is(err, hns.ErrGone) {
		return fmt.Errorf("remove network %s: %w", s.network, err)
	}
	return nil
}
