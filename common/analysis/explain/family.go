// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/model"
)

// OtherFamily compares a report with the verdict on the same flow over the other family of addresses, which policies that name
// addresses may decide in another way. from and to are the ends as ends.InUse reads them. It returns a note, or "" if the verdict
// is the same or the ends have no addresses of the other family.
func (x *Report) OtherFamily(s *model.Snapshot, from, to string, f model.Flow, services []*model.Service) string {
	other, ok := ends.OtherFamily(s, from, to, f)
	if !ok {
		return ""
	}
	verdict := Flow(s, other, services, nil).Verdict
	if verdict == x.Verdict {
		return ""
	}
	return fmt.Sprintf("from %s to %s the verdict is %s: give these addresses for the reasons", other.Src, other.Dst, verdict)
}
