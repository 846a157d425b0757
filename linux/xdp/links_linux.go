// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ErrForeign is returned by Attach when the device has an XDP program that Isthmus did not
// attach.
var ErrForeign = errors.New("the device has an XDP program of another owner, which is not replaced: remove that program, or leave the device out")

// Attach attaches the program to a device, or replaces an older one of ours in place. It tries
// the driver first. native is the reason why that failed, nil if it worked or the device had
// the program already.
func (f *Filter) Attach(name string, index int) (native, err error) {
	path := filepath.Join(f.links, name)
	l, err := f.pins.Link(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return f.attach(path, index)
	case err != nil:
		return nil, err
	}
	if on, err := device(l); err != nil || on != index { // the index belongs to another device now, or the link was detached
		if err := f.pins.Drop(path); err != nil {
			return nil, err
		}
		return f.attach(path, index)
	}
	if err := f.exchange(l); err != nil {
		return nil, fmt.Errorf("replace the program of %s: %w", path, err)
	}
	return nil, nil
}

// exchange gives a link this Filter's program, if it has another one.
func (f *Filter) exchange(l link.Link) error {
	info, err := l.Info()
	if err != nil {
		return err
	}
	own, err := f.objects.Uplink.Info()
	if err != nil {
		return err
	}
	if id, ok := own.ID(); ok && id == info.Program {
		return nil
	}
	return l.Update(f.objects.Uplink)
}

func (f *Filter) attach(path string, index int) (native, err error) {
	for _, flags := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		var l link.Link
		l, err = link.AttachXDP(link.XDPOptions{Program: f.objects.Uplink, Interface: index, Flags: flags})
		if err == nil {
			if err = l.Pin(path); err != nil {
				l.Close()
				return native, fmt.Errorf("pin link %s: %w", path, err)
			}
			return native, f.pins.Keep(path, l)
		}
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return nil, ErrForeign
		}
		if flags == link.XDPDriverMode {
			native = err
		}
	}
	return native, fmt.Errorf("attach to device %s: %w", filepath.Base(path), err)
}

// device returns the index of the device of a link, 0 if it is gone.
func device(l link.Link) (int, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	x := info.XDP()
	if x == nil {
		return 0, fmt.Errorf("is a link of type %d, not XDP", info.Type)
	}
	return int(x.Ifindex), nil
}

// Attached lists the devices that have a pinned link in a directory.
func Attached(links string) ([]string, error) {
	entries, err := os.ReadDir(links)
	if errors.Is(err, unix.ENOTDIR) { // another process has pinned an object in its place
		return nil, os.Remove(links)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Detach detaches the program from a device. A missing program is not an error.
func (f *Filter) Detach(name string) error {
	err := Detach(f.links, name)
	return errors.Join(err, f.pins.Drop(filepath.Join(f.links, name)))
}

// Detach detaches the program from a device without an open Filter. A missing program is not an
// error.
func Detach(links, name string) error {
	path := filepath.Join(links, name)
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		// Without this call, the link would stay attached for a moment after its pin is
		// removed.
		err = l.Detach()
		l.Close()
		if err != nil {
			return fmt.Errorf("detach from %s: %w", name, err)
		}
	}
	// Remove objects that are not links, too.
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("unpin the link of %s: %w", name, err)
	}
	return nil
}

// Remove detaches the program from every device, and removes its maps from the directory pins
// and the directory of links. Missing objects are not an error.
func Remove(pins string) error {
	names, err := Attached(Links(pins))
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		errs = append(errs, Detach(Links(pins), n))
	}
	for _, n := range []string{"deny_prefilter4", "deny_prefilter6", "deny4", "deny6", "deny_prefixes4", "deny_prefixes6"} {
		if err := os.RemoveAll(filepath.Join(pins, n)); err != nil {
			errs = append(errs, fmt.Errorf("unpin map %s: %w", n, err))
		}
	}
	if err := os.RemoveAll(Links(pins)); err != nil {
		errs = append(errs, fmt.Errorf("remove directory of pinned links: %w", err))
	}
	return errors.Join(errs...)
}
