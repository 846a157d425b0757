// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

func TestSizeBucket(t *testing.T) {
	const runtimes = 1<<32 - 1
	for _, c := range []struct {
		limit model.Limit
		mtu   int
		want  bucketSize
	}{
		{model.Limit{Rate: 8e6, Burst: runtimes}, 1500, bucketSize{1e6, 100_000, 200_000}},
		{model.Limit{Rate: 8e6}, 1500, bucketSize{1e6, 20_000, 120_000}},
		{model.Limit{Rate: 8e6, Burst: 240_000}, 1500, bucketSize{1e6, 30_000, 130_000}},
		{model.Limit{Rate: 8e6, Burst: 8}, 1482, bucketSize{1e6, 3_000, 103_000}}, // two packets
		{model.Limit{Rate: 8e3, Burst: runtimes}, 1482, bucketSize{1e3, 3_000, 51_000}},
		{model.Limit{Rate: model.MaxRate, Burst: runtimes}, 9000, bucketSize{model.MaxRate / 8, runtimes / 8, 1<<32 - 1}},
	} {
		if got := sizeBucket(c.limit, c.mtu); got != c.want {
			t.Errorf("%+v with MTU %d: %+v, want %+v", c.limit, c.mtu, got, c.want)
		}
	}
}
