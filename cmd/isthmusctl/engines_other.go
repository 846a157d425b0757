// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package engine

import (
	"errors"

	"github.com/isthmus-net/isthmus/common/model"
)

// Program is the real BPF programs; only Linux can run them.
type Program struct{}

var errNotLinux = errors.New("BPF programs run on Linux only")

// Name implements Engine.
func (*Program) Name() string { return "program" }

// Load implements Engine; it always fails.
func (*Program) Load(*Cluster) error { return errNotLinux }

// Decide implements Engine; it always fails.
func (*Program) Decide(Question) (model.Verdict, error) { return model.Deny, errNotLinux }

// Close implements Engine.
func (*Program) Close() error { return nil }

// Ready says why the engine cannot run here.
func (*Program) Ready() error { return errNotLinux }
