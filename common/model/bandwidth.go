// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
)

// Bounds of rates, in bits per second. The kubelet rejects rates outside these bounds too.
const (
	MinRate = 1_000
	MaxRate = 1_000_000_000_000_000
)

// Bandwidth limits the traffic to a pod (ingress) and from it (egress). The zero value is unlimited.
type Bandwidth struct {
	Ingress Limit `json:"ingress,omitzero"`
	Egress  Limit `json:"egress,omitzero"`
}

// Limit is a maximum long-term rate.
type Limit struct {
	// Rate is in bits per second; 0 means no limit.
	Rate uint64 `json:"rate"`
	// Burst is the number of bits that may pass at once after a pause; 0 lets the data path choose.
	// Runtimes pass 2^32 bits to mean infinite. Data paths reduce the burst to what the rate requires.
	Burst uint64 `json:"burst,omitempty"`
}

// Validate reports everything that is wrong with the limits, by direction.
func (b Bandwidth) Validate() error {
	return errors.Join(b.Ingress.validate("ingress"), b.Egress.validate("egress"))
}

func (l Limit) validate(direction string) error {
	switch {
	case l.Rate == 0 && l.Burst != 0:
		return fmt.Errorf("%sBurst is %d bits without a rate: set %sRate too", direction, l.Burst, direction)
	case l.Rate != 0 && (l.Rate < MinRate || l.Rate > MaxRate):
		return fmt.Errorf("%sRate is %d bits per second: use %d to %d", direction, l.Rate, MinRate, uint64(MaxRate))
	}
	return nil
}

// String returns "ingress 10000000 bit/s, egress 5000000 bit/s", or "no limit".
func (b Bandwidth) String() string {
	switch {
	case b.Ingress.Rate == 0 && b.Egress.Rate == 0:
		return "no limit"
	case b.Egress.Rate == 0:
		return fmt.Sprintf("ingress %d bit/s", b.Ingress.Rate)
	case b.Ingress.Rate == 0:
		return fmt.Sprintf("egress %d bit/s", b.Egress.Rate)
	}
	return fmt.Sprintf("ingress %d bit/s, egress %d bit/s", b.Ingress.Rate, b.Egress.Rate)
}
