// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

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
	return client, compartments{set}, nil
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
type compartments struct{ set *windows.LazyProc }

// Events implements wire.
func (compartments) Events() (etw.Source, error) { return etw.New(eventSession()) }

// connectTime allows for two lost SYNs.
const connectTime = 5 * time.Second

// hostCompartment is the compartment of a new thread.
const hostCompartment = 1

// in runs f on a thread in a compartment; the sockets of f belong to that compartment.
func (c compartments) in(id uint32, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // stays locked if the thread cannot return
		if code, _, _ := c.set.Call(uintptr(id)); code != 0 {
			done <- fmt.Errorf("enter compartment %d: error %d: run as administrator", id, code)
			return
		}
		err := f()
		if code, _, _ := c.set.Call(hostCompartment); code == 0 {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Reach implements wire.
func (c compartments) Reach(ctx context.Context, from, to pod, port uint16) (reached bool, err error) {
	var l net.Listener
	at := netip.AddrPortFrom(to.ip, port).String()
	if err := c.in(to.compartment, func() (err error) {
		l, err = net.Listen("tcp4", at)
		return err
	}); err != nil {
		return false, fmt.Errorf("listen in compartment %d: %w", to.compartment, err)
	}
	defer l.Close()
	err = c.in(from.compartment, func() error {
		conn, err := (&net.Dialer{Timeout: connectTime}).DialContext(ctx, "tcp4", at)
		if err != nil {
			var t net.Error
			if errors.As(err, &t) {
				return ctx.Err() // refused by a rule, or silently dropped
			}
			return err
		}
		reached = true
		return conn.Close()
	})
	return reached, err
}
