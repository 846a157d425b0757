// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// remedied adds the remedy to an error of HNS, if its code implies one.
func remedied(err error) error {
	switch hns.Code(err) {
	case hns.CodeAccessDenied:
		return fmt.Errorf("%w: run the agent as an administrator, or in a HostProcess container as NT AUTHORITY\\SYSTEM", err)
	case hns.CodeInvalidPolicy:
		return fmt.Errorf("%w: editions of Windows for clients have no VFP, which ACLs and overlay networks need: use Windows Server", err)
	}
	return err
}

// withoutAdapter adds the remedy if HNS found no adapter for a network.
func withoutAdapter(err error) error {
	if errors.Is(err, hns.ErrGone) || hns.Code(err) == hns.CodeAdapterNotFound {
		return fmt.Errorf("%w: HNS finds no adapter that is up and has an address: check Get-NetAdapter and Get-NetIPAddress", err)
	}
	return remedied(err)
}
