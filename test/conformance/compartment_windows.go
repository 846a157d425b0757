// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/windows"

	"github.com/isthmus-net/isthmus/test/winver"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// openHNS opens the service of this machine. If threads cannot change their compartment, wire is nil.
func openHNS() (hns.Client, wire, error) {
	client, err := hns.Open()
	if err != nil {
		return nil, nil, err
	}
	set := windows.NewLazySystemDLL("iphlpapi.dll").NewProc("SetCurrentThreadCompartmentId")
	if set.Find() != nil {
		return client, nil, nil
	}
	return client, compartments{sockets{func(id uint32, f func() error) error { return in(set, id, f) }}}, nil
}

// release returns the version of Windows.
func release() string {
	version, wine := winver.Read()
	if wine {
		return wineName
	}
	return version
}

// compartments sends packets from the network compartments of pods. It uses the API with which container runtimes
// enter them.
type compartments struct{ sockets }

// Events implements wire.
func (compartments) Events() (etw.Source, error) { return etw.New(eventSession()) }

// hostCompartment is the compartment of a new thread.
const hostCompartment = 1

// in runs f on a thread in a compartment; the sockets of f belong to that compartment.
func in(set *windows.LazyProc, id uint32, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // stays locked if the thread cannot return
		if code, _, _ := set.Call(uintptr(id)); code != 0 {
			done <- fmt.Errorf("enter compartment %d: error %d: run as administrator", id, code)
			return
		}
		err := f()
		if code, _, _ := set.Call(hostCompartment); code == 0 {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
