// SPDX-License-Identifier: Apache-2.0

package hostfabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hostroute"
	"github.com/isthmus-net/isthmus/windows/statefile"
)

// changes changes the host, and collects the changes and the failures.
type changes struct {
	stack hostroute.Stack
	step  func(string)
	file  string
	done  []string
	errs  []string
	// damaged says that the file was not readable; "" if it was.
	damaged string
}

func (c *changes) do(what string, err error) bool {
	if err != nil {
		c.errs = append(c.errs, fmt.Sprintf("%s: %v", what, err))
		return false
	}
	c.done = append(c.done, what)
	return true
}

// apply gives the host its intended routes and flags, and returns what the host has afterwards. Forwarding comes before
// routes, so that a route in force works.
func (c *changes) apply(have *present, want *intent) *present {
	d := have.compare(want)
	c.forwarding(have, want, d.turnOn)
	for _, r := range d.remove {
		c.step("remove host route")
		c.do("remove the route to "+text(r), c.stack.Remove(r))
	}
	for _, r := range d.add {
		c.step("add host route")
		c.do("add the route to "+text(r), c.stack.Add(r))
	}
	if len(c.done) == 0 {
		return have
	}
	now, err := read(c.stack)
	if err != nil {
		c.errs = append(c.errs, err.Error())
		return have
	}
	c.readBack(now, d)
	return now
}

// readBack reports changes that the host accepted and did not make.
func (c *changes) readBack(now *present, d difference) {
	if len(c.errs) > 0 {
		return
	}
	for _, r := range d.add {
		if !slices.ContainsFunc(now.routes, func(o hostroute.Route) bool { return same(o, r) }) {
			c.errs = append(c.errs, fmt.Sprintf("Windows accepted the route to %s but does not list it: check route print", text(r)))
		}
	}
	for _, k := range now.off(d.turnOn) {
		c.errs = append(c.errs, fmt.Sprintf("Windows accepted %s forwarding of interface %q but it is off: check Get-NetIPInterface", k.Family, k.Interface))
	}
}

// forwarding turns flags on, after noting them. It turns off those that it turned on and that are not
// needed any more.
func (c *changes) forwarding(have *present, want *intent, turnOn []flag) {
	noted, ok := c.noted()
	if !ok {
		return
	}
	var keep []flag
	for _, k := range noted {
		i, exists := have.find(k)
		if exists && (slices.Contains(want.forwarding, k) || i.Forwarding[k.Family] && !c.turn(have, k, false)) {
			keep = append(keep, k)
		}
	}
	for _, k := range turnOn {
		if !slices.Contains(keep, k) {
			keep = append(keep, k)
		}
	}
	if !slices.Equal(keep, noted) {
		if err := statefile.Save(c.file, keep); err != nil {
			c.errs = append(c.errs, fmt.Sprintf("note forwarding flags: %v", err))
			return // a flag that the file does not list would stay on for ever
		}
	}
	for _, k := range turnOn {
		c.turn(have, k, true)
	}
}

// noted reads the flags that were turned on; none without a file. A damaged file must not keep forwarding off for ever. A power cut
// damages it, and the flags that it noted ended with that.
func (c *changes) noted() (flags []flag, ok bool) {
	err := statefile.Load(c.file, func(text []byte) error { return json.Unmarshal(text, &flags) })
	switch {
	case errors.Is(err, statefile.ErrDamaged):
		c.damaged = fmt.Sprintf("the note of forwarding flags %v: flags that it named stay on after an uninstallation", err)
		return nil, true
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		c.errs = append(c.errs, fmt.Sprintf("read the note of forwarding flags: %v", err))
		return nil, false
	}
	return flags, true
}

// turn sets a flag and reports whether that succeeded.
func (c *changes) turn(have *present, k flag, on bool) bool {
	word := "off"
	if on {
		word = "on"
	}
	i, _ := have.find(k)
	c.step("turn forwarding " + word)
	return c.do(fmt.Sprintf("turn %s %s forwarding of interface %q", word, k.Family, k.Interface), c.stack.SetForwarding(i.Index, k.Family, on))
}

// Remove removes the routes from a host, and turns off the forwarding that was turned on. It is for
// uninstalling. file is that of the Config; it is removed too.
func Remove(stack hostroute.Stack, file string) error {
	have, err := read(stack)
	if err != nil {
		return err
	}
	c := &changes{stack: stack, step: func(string) {}, file: file}
	c.apply(have, &intent{})
	if c.damaged != "" {
		c.errs = append(c.errs, c.damaged)
	}
	if len(c.errs) > 0 {
		return fmt.Errorf("remove the host's routes and forwarding: %v", c.errs)
	}
	if err := statefile.Remove(file); err != nil {
		return fmt.Errorf("remove the noted forwarding flags: %w", err)
	}
	return nil
}
