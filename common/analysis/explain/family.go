// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
)

// NoteOther adds a note to a report if the same flow over the other family of addresses has another verdict: policies that name
// addresses may decide it in another way. The verdict must come from the same source as that of the report.
func (x *Report) NoteOther(other model.Flow, verdict string) {
	if verdict != x.Verdict {
		x.Notes = append(x.Notes, fmt.Sprintf("from %s to %s the verdict is %s: give these addresses for the reasons", other.Src, other.Dst, verdict))
	}
}
