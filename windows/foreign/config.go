// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostaddr"
)

// Config configures a Backend.
type Config struct {
	// NodeAddresses are those of the node. HostAddresses follows further ones of the host. They reach every pod.
	NodeAddresses []netip.Addr
	HostAddresses hostaddr.Config
	// MaxRules bounds the ACLs of one endpoint; 0 is the default of package acl.
	MaxRules int
	// File records which endpoint belongs to which pod.
	File string
	// Events are the events of Windows that explain drops; nil for none. EventLimits bound those of a pod.
	Events      etw.Source
	EventLimits flowevents.Limits
	// CallDeadline bounds each call to HNS; 0 is the default of hns.Guard.
	CallDeadline time.Duration
	// Observe, if set, is called after every call to HNS.
	Observe func(hns.Call)
	// Now is the clock by which readings are limited; nil is time.Now.
	Now func() time.Time
	// Step, if set, is called before every step that a crash can separate from the next.
	Step func(string)
}

// Validate reports every invalid value.
func (c Config) Validate() error {
	var errs []error
	if c.File != "" && !filepath.IsAbs(c.File) {
		errs = append(errs, fmt.Errorf("file %q: give an absolute path", c.File))
	}
	errs = append(errs, c.HostAddresses.Validate())
	if err := c.EventLimits.Validate(); c.Events != nil && err != nil {
		errs = append(errs, err)
	}
	if c.CallDeadline < 0 {
		errs = append(errs, fmt.Errorf("call deadline %s: must be positive", c.CallDeadline))
	}
	return errors.Join(errs...)
}
