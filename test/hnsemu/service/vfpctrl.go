// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// vfpctrl makes the call of vfpctrl.exe, whose arguments are words.
func (s *Service) vfpctrl(c Call) (Answer, error) {
	if s.config.VFPControl == nil || c.Op != "Run.vfpctrl" {
		return Answer{}, hns.NewError(c.Op, hns.CodeNotImplemented, "Not implemented")
	}
	text, err := s.config.VFPControl(strings.Fields(c.Args[0]))
	if err != nil {
		return Answer{}, hns.NewError(c.Op, hns.CodeUnexpected, err.Error())
	}
	return Answer{Output: &text}, nil
}
