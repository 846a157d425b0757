// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// hold makes a pipe or a mutex, which exists until the process ends.
func hold(name string) error {
	if strings.HasPrefix(name, `\\.\pipe\`) {
		_, err := winio.ListenPipe(name, nil)
		return err
	}
	text, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return err
	}
	_, err = windows.CreateMutex(nil, false, text)
	return err
}
