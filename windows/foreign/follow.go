// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

var _ dataplane.Follower = (*Backend)(nil)

// share bounds the time that HNS spends on our readings while nothing changes: one part in so many.
const share = 10

// followRetry is the interval of Follow after a listing that failed.
const followRetry = time.Second

// readings says when endpoints are read next.
type readings struct {
	// seen is the summary before the last listing; "" if there is none.
	seen string
	// summary and listing are not before these times.
	summary, listing time.Time
	// all is what the last listing has found, text the summary before it, and until the end of its use.
	all   []found
	text  string
	until time.Time
}

// often is a pause that the agent makes anyway.
const often = 400 * time.Millisecond

// rest is when a reading may be repeated that took from began until now.
func (b *Backend) rest(began time.Time) time.Time {
	now := b.config.Now()
	if pause := now.Sub(began) * (share - 1); pause > often {
		return now.Add(pause)
	}
	return now
}

// readSummary reads a summary of the endpoints; "" if HNS has none.
func (b *Backend) readSummary(ctx context.Context) (string, error) {
	began := b.config.Now()
	text, err := b.hns.Summary(ctx)
	b.readings.summary = b.rest(began)
	return text, err
}

// Follow implements dataplane.Follower. It compares summaries, each of one call, and lists the endpoints if they differ. A host has an endpoint
// for each backend of a Service, and a listing of thousands takes HNS seconds.
func (b *Backend) Follow(ctx context.Context) error {
	if len(b.wanted) == 0 || b.config.Now().Before(b.readings.summary) {
		return nil
	}
	text, err := b.readSummary(ctx)
	if err != nil || text == "" || text == b.readings.seen {
		return err
	}
	return b.list(ctx, text)
}

// compare lists the endpoints unless that was done lately, measured by the time that it takes. It finds what summaries do not show.
func (b *Backend) compare(ctx context.Context) error {
	if len(b.wanted) == 0 || b.config.Now().Before(b.readings.listing) {
		return nil
	}
	text, err := b.readSummary(ctx)
	if err != nil {
		text = ""
	}
	return b.list(ctx, text)
}

// list lists the endpoints, and writes the lists that are not in force. A summary from before says when this is necessary again. Writes that
// failed are repeated by the next compare.
func (b *Backend) list(ctx context.Context, summary string) error {
	b.readings.seen = ""
	all, err := b.read(ctx, summary)
	b.readings.listing = b.readings.until
	if err != nil {
		b.readings.summary = b.config.Now().Add(followRetry)
		return err
	}
	_, err = b.enforce(ctx, all)
	b.readings.seen = summary
	switch {
	case err == nil:
	case dataplane.Concerns(err, "") || delays(err):
		b.readings.listing = time.Time{}
		return err
	case !unfitOnly(err):
		b.readings.listing = time.Time{}
	}
	return nil
}

// read lists the endpoints. summary is from before.
func (b *Backend) read(ctx context.Context, summary string) ([]found, error) {
	began := b.config.Now()
	all, err := b.scan(ctx)
	b.readings.all, b.readings.text, b.readings.until = all, summary, b.rest(began)
	return all, err
}

// recent returns the endpoints: those of the last listing if it took long and the summary is as before.
func (b *Backend) recent(ctx context.Context) ([]found, error) {
	text, err := b.readSummary(ctx)
	if err == nil && text != "" && text == b.readings.text && b.config.Now().Before(b.readings.until) {
		return b.readings.all, nil
	}
	if err != nil {
		text = ""
	}
	return b.read(ctx, text)
}
