// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"
	"time"
)

// Newest remembers the identifier of the newest flow of each outcome, as exemplar of the counters of flows. The zero value
// knows none. It is safe for concurrent use.
type Newest struct {
	mutex sync.Mutex
	all   [Observed + 1]Identified
}

// Identified is a flow by its identifier, which clients of Hubble's interface can filter for.
type Identified struct {
	ID   string
	Time time.Time
}

// Set remembers a flow.
func (n *Newest) Set(o Outcome, f Identified) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.all[o] = f
}

// Get returns the newest flow of an outcome. Its ID is empty if there was none.
func (n *Newest) Get(o Outcome) Identified {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.all[o]
}
