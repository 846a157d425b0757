// SPDX-License-Identifier: Apache-2.0

package endpoint

import "os"

// flush makes what was written to a file durable: endpoints of HNS may outlive
// the machine's run. The rename that follows is in NTFS's journal.
func flush(f *os.File) error { return f.Sync() }
