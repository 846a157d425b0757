// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Bug is a bug that can be planted in a Fake, to prove that tests find it.
type Bug string

// The bugs. hcsshim's own tests do not find the first three and the last.
const (
	BugFilterIgnored   Bug = "filters of listings are ignored"
	BugNoAddress       Bug = "no address is allotted"
	BugMAC             Bug = "hardware addresses are none"
	BugPortTwice       Bug = "a port of the node is mapped twice"
	BugAddressTwice    Bug = "an address is given twice"
	BugWrongCode       Bug = "a missing object has a wrong code"
	BugResourceMissing Bug = "an attached endpoint is not in its namespace"
	BugAddLost         Bug = "policies that are added are lost"
	BugRemoveIgnored   Bug = "policies are not removed"
	BugUpdateAppends   Bug = "an update adds to the present policies"
	BugSetKept         Bug = "an update leaves a set as it was"
	BugLastWins        Bug = "the last rule that matches decides"
	BugDirections      Bug = "rules of one direction decide the other"
	BugPortsIgnored    Bug = "rules match every port"
	BugDeleteKeeps     Bug = "deleted objects stay"
	BugDetachKeeps     Bug = "detached endpoints stay attached"
	BugRebootKeeps     Bug = "networks outlive a restart of the machine"
	BugDNSLost         Bug = "the DNS of endpoints is lost"
)

// Bugs lists all bugs.
func Bugs() []Bug {
	return []Bug{BugFilterIgnored, BugNoAddress, BugMAC, BugPortTwice, BugAddressTwice, BugWrongCode, BugResourceMissing, BugAddLost, BugRemoveIgnored,
		BugUpdateAppends, BugSetKept, BugLastWins, BugDirections, BugPortsIgnored, BugDeleteKeeps, BugDetachKeeps, BugRebootKeeps, BugDNSLost}
}

// Plant plants a bug in the Fake; the empty one removes it. Set before use.
func (f *Fake) Plant(b Bug) { f.bug = b }

// Has reports whether the bug is planted.
func (f *Fake) Has(b Bug) bool { return f.bug == b }

// misread returns ACLs as a Fake with a bug interprets them.
func (f *Fake) misread(acls []hns.ACL) []hns.ACL {
	acls = slices.Clone(acls)
	for i := range acls {
		a := &acls[i]
		switch f.bug {
		case BugLastWins:
			if a.Priority > 0 {
				a.Priority = hns.MaxPriority - a.Priority + hns.MinPriority
			}
		case BugDirections:
			if a.Direction == hns.In {
				a.Direction = hns.Out
			} else {
				a.Direction = hns.In
			}
		case BugPortsIgnored:
			a.LocalPorts, a.RemotePorts = "", ""
		}
	}
	return acls
}
