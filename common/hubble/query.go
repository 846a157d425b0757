// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

// Query is a checked request for flows.
type Query struct {
	Filter *Filter
	Mask   *Mask
	// Number bounds the matching flows; 0 does not. First selects the oldest ones, otherwise the newest.
	Number uint64
	First  bool
	// Follow continues with new flows. Number then bounds the kept ones only.
	Follow bool
	// Since and Until are zero if they do not count. Since takes precedence over Number.
	Since, Until time.Time
	// positions makes answers carry their position.
	positions bool
}

// NewQuery checks a request. The errors name field and remedy.
func NewQuery(r *observer.GetFlowsRequest) (*Query, error) {
	if r.GetFirst() && r.GetFollow() {
		return nil, errors.New("first and follow: give one of them")
	}
	if len(r.ProtoReflect().GetUnknown()) > 0 {
		return nil, errors.New("the request has a field that this version does not support")
	}
	q := &Query{Number: r.GetNumber(), First: r.GetFirst(), Follow: r.GetFollow()}
	var err error
	if q.Since, err = checkTime("since", r.GetSince()); err != nil {
		return nil, err
	}
	if q.Until, err = checkTime("until", r.GetUntil()); err != nil {
		return nil, err
	}
	if q.Filter, err = NewFilter(r.GetWhitelist(), r.GetBlacklist()); err != nil {
		return nil, err
	}
	q.Mask, err = NewMask(r.GetFieldMask())
	return q, err
}

func checkTime(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", field, err)
	}
	return t.AsTime(), nil
}

// matches reports whether the query selects an event, apart from Number. Filters do not matter for lost flows; all between
// Since and Until count that may have been lost then.
func (q *Query) matches(e *Event) bool {
	if e.Lost != nil {
		return (q.Since.IsZero() || !e.Time.Before(q.Since)) && (q.Until.IsZero() || !e.Lost.GetFirst().AsTime().After(q.Until))
	}
	return (q.Since.IsZero() || !e.Time.Before(q.Since)) && (q.Until.IsZero() || !e.Time.After(q.Until)) && q.Filter.Matches(e.Flow.Message())
}

// past returns the selected ones of the kept events, oldest first.
func (q *Query) past(kept []Event) []Event {
	if q.Follow && q.Number == 0 && q.Since.IsZero() {
		return nil
	}
	var found []Event
	limit, flows := q.Number, uint64(0)
	if limit == 0 || q.Follow && !q.Since.IsZero() {
		limit = math.MaxUint64
	}
	take := func(e Event) bool {
		if !q.matches(&e) {
			return true
		}
		found = append(found, e)
		if e.Flow != nil {
			flows++
		}
		return flows < limit
	}
	if q.First || !q.Since.IsZero() {
		for _, e := range kept {
			if !take(e) {
				break
			}
		}
		return found
	}
	for _, e := range slices.Backward(kept) {
		if !take(e) {
			break
		}
	}
	slices.Reverse(found)
	return found
}
