// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"math"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// How long a bucket may send at once, and keep packets waiting, at its rate.
const (
	burstDefault = 20 * time.Millisecond
	burstLongest = 100 * time.Millisecond
	patience     = 100 * time.Millisecond
)

// bucketSize is a token bucket: rate in bytes per second, burst and limit of the queue in
// bytes.
type bucketSize struct {
	rate         uint64
	burst, limit uint32
}

// sizeBucket computes the bucket for a limit on an interface with an MTU. Container runtimes
// request a burst of half a gigabyte, which would not limit most connections. sizeBucket
// reduces it to the bytes of a tenth of a second. A bucket must hold at least one packet. With
// two, one packet can wait for tokens while the other is sent.
func sizeBucket(l model.Limit, mtu int) bucketSize {
	const ethernet = 18 // with a VLAN tag
	packet := uint64(mtu + ethernet)
	rate := l.Rate / 8
	in := func(d time.Duration) uint64 { return rate / uint64(time.Second/d) }
	burst := l.Burst / 8
	if burst == 0 {
		burst = in(burstDefault)
	}
	burst = max(min(burst, in(burstLongest)), 2*packet)
	limit := burst + max(in(patience), 32*packet)
	return bucketSize{rate: rate, burst: uint32(min(burst, math.MaxUint32/2)), limit: uint32(min(limit, math.MaxUint32))}
}
