// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/Microsoft/hcsshim/hcn"

	"github.com/isthmus-net/isthmus/test/winver"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// machine is this Windows host.
type machine struct{ hns.Client }

// openHost opens the HNS of this host.
func openHost() (host, error) {
	client, err := hns.Open()
	if err != nil {
		return nil, err
	}
	return machine{client}, nil
}

// Release implements host.
func (machine) Release() string {
	version, _ := winver.Read()
	return version
}

// AddNamespace implements host. containerd makes namespaces with the same calls.
func (machine) AddNamespace() (string, error) {
	n, err := (&hcn.HostComputeNamespace{}).Create()
	if err != nil {
		return "", fmt.Errorf("create namespace: %w", err)
	}
	return n.Id, nil
}

// RemoveNamespace implements host.
func (machine) RemoveNamespace(id string) error {
	n, err := hcn.GetNamespaceByID(id)
	if err != nil {
		return fmt.Errorf("find namespace %s: %w", id, err)
	}
	return n.Delete()
}
