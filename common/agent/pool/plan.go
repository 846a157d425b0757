// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// Size is the number of prepared endpoints that a node keeps.
type Size int

// The special sizes.
const (
	Off Size = 0
	// Auto keeps as many as pods have started within one minute.
	Auto Size = -1
)

// The bounds of sizes: of the administrator's choice, of Auto, and of Auto for the same DNS settings.
const (
	maxSize    = 256
	maxAuto    = 64
	maxAutoDNS = 16
)

// ParseSize parses auto, off or a number.
func ParseSize(text string) (Size, error) {
	switch text {
	case "auto":
		return Auto, nil
	case "off":
		return Off, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxSize {
		return Off, fmt.Errorf("endpoint pool %q: use auto, off, or a number from 1 to %d", text, maxSize)
	}
	return Size(n), nil
}

// The history of ADDs: how long it reaches, how many ADDs of one DNS setting it holds, and how many settings.
const (
	memory  = time.Hour
	burst   = time.Minute
	maxAdds = 256
	maxDNS  = 64
)

// use is how often pods with the same DNS settings start.
type use struct {
	dns model.DNS
	// adds are the times of the last ADDs, the oldest first.
	adds []time.Time
}

// history maps DNS settings, as text, to their use.
type history map[string]*use

// note records an ADD. It forgets the settings that were not used for the longest time.
func (h history) note(dns model.DNS, at time.Time) {
	u := h[dns.String()]
	if u == nil {
		if len(h) >= maxDNS {
			oldest := slices.MinFunc(slices.Collect(maps.Keys(h)), func(a, b string) int { return h[a].last().Compare(h[b].last()) })
			delete(h, oldest)
		}
		u = &use{dns: dns}
		h[dns.String()] = u
	}
	u.adds = append(u.adds, at)
	slices.SortFunc(u.adds, time.Time.Compare)
	u.adds = u.adds[max(0, len(u.adds)-maxAdds):]
}

func (u *use) last() time.Time { return u.adds[len(u.adds)-1] }

// recent counts the ADDs that are remembered, peak those within one minute.
func (u *use) recent(now time.Time) (recent, peak int) {
	first := 0
	for i, at := range u.adds {
		if now.Sub(at) > memory {
			first = i + 1
			continue
		}
		for u.adds[i].Sub(u.adds[first]) > burst {
			first++
		}
		recent++
		peak = max(peak, i-first+1)
	}
	return recent, peak
}

// wanted returns how many endpoints to keep for each of the settings, at most most. A number is divided in
// proportion to the ADDs of the last hour.
func (h history) wanted(size Size, most int, now time.Time) map[string]int {
	keys := slices.Sorted(maps.Keys(h))
	weight := make(map[string]int)
	total, sum := 0, 0
	for _, k := range keys {
		recent, peak := h[k].recent(now)
		if weight[k] = max(1, recent); size == Auto {
			weight[k] = min(peak, maxAutoDNS)
		}
		sum += weight[k]
	}
	if total = int(size); size == Auto {
		total = min(sum, maxAuto)
	}
	total = min(total, most)
	// The most used settings first; the rest of a division goes to them, too.
	slices.SortStableFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), h[b].last().Compare(h[a].last()))
	})
	all := make(map[string]int)
	for _, k := range keys {
		if sum == 0 || total <= 0 {
			break
		}
		share := (total*weight[k] + sum - 1) / sum
		all[k] = share
		total, sum = total-share, sum-weight[k]
	}
	return all
}
