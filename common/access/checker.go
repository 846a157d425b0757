// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// AllowFor is how long a Checker uses an allowing answer of the Authority again.
	AllowFor = 30 * time.Second
	// DenyFor is how long it uses a denying answer again.
	DenyFor = 5 * time.Second
	// MaxNamespaces bounds the namespaces of a request.
	MaxNamespaces = 64
	// maxToken is the length of a token in bytes. maxKept bounds the answers of each kind that are kept.
	maxToken, maxKept = 16 << 10, 4096
	// maxCalls bounds the calls of the Authority at a time, and callTimeout each of them with its wait. Calls about tokens that
	// were not valid before are bounded by maxUnknown, and take none of the others. Calls about the rights of one user are bounded
	// by maxUser: it may name many namespaces.
	maxCalls, maxUnknown, maxUser, callTimeout = 12, 4, 4, 5 * time.Second
)

// Checker decides about clients. It is safe for concurrent use.
type Checker struct {
	authority Authority
	now       func() time.Time
	// calls and unknown hold an element per call of the Authority. Anyone may send tokens: without a share of their own, guesses
	// would keep the clients with valid tokens waiting.
	calls, unknown chan struct{}
	flight         singleflight.Group

	mutex  sync.Mutex
	users  map[string]kept[User]
	rights map[string]kept[bool]
	shares map[string]*share // by name of the user
}

// share bounds the calls about the rights of one user. It exists while there are such calls.
type share struct {
	calls   chan struct{} // an element per call
	waiting int           // calls that have an element or wait for one
}

// kept is an answer of the Authority, with the time of its end.
type kept[T any] struct {
	answer T
	err    error
	until  time.Time
}

// NewChecker returns a Checker. now is the clock; nil is that of the system.
func NewChecker(a Authority, now func() time.Time) *Checker {
	if now == nil {
		now = time.Now
	}
	return &Checker{authority: a, now: now, calls: make(chan struct{}, maxCalls), unknown: make(chan struct{}, maxUnknown),
		users: make(map[string]kept[User]), rights: make(map[string]kept[bool]), shares: make(map[string]*share)}
}

// User returns the user of a token. The error is ErrUnauthenticated, or says why there is no answer.
func (c *Checker) User(ctx context.Context, token string) (User, error) {
	if token == "" || len(token) > maxToken {
		return User{}, ErrUnauthenticated
	}
	sum := sha256.Sum256([]byte(token)) // the tokens themselves are not kept
	return lookUp(ctx, c, c.users, place{slots: c.unknown, key: "user " + string(sum[:])}, func(ctx context.Context) (User, time.Duration, error) {
		u, err := c.authority.Authenticate(ctx, token)
		if err != nil {
			return User{}, DenyFor, err
		}
		return u, AllowFor, nil
	})
}

// Check returns nil if a user has a right, and a DeniedError otherwise. Another error says why there is no answer.
func (c *Checker) Check(ctx context.Context, u User, r Right) error {
	at := place{slots: c.calls, key: "right " + fingerprint(u) + " " + r.String(), user: u.Name}
	allowed, err := lookUp(ctx, c, c.rights, at, func(ctx context.Context) (bool, time.Duration, error) {
		allowed, err := c.authority.Allowed(ctx, u, r)
		if allowed && err == nil {
			return true, AllowFor, nil
		}
		return false, DenyFor, err
	})
	if err == nil && !allowed {
		return &DeniedError{u.Name, r}
	}
	return err
}

// Scope returns what a user may read who requests the flows of namespaces; without names, those of all. The user
// needs the right for each of the namespaces, or for all.
func (c *Checker) Scope(ctx context.Context, u User, verb string, namespaces []string) (Scope, error) {
	if len(namespaces) > MaxNamespaces {
		return Scope{}, fmt.Errorf("%w: the request names %d namespaces: name at most %d", ErrTooMany, len(namespaces), MaxNamespaces)
	}
	var s Scope
	err := c.Check(ctx, u, Right{verb, Flows, ""})
	switch denied := (*DeniedError)(nil); {
	case err == nil:
		s.All = true
	case !errors.As(err, &denied) || len(namespaces) == 0:
		return Scope{}, err
	default:
		s.Namespaces = slices.Compact(slices.Sorted(slices.Values(namespaces)))
		for _, n := range s.Namespaces {
			if err := c.Check(ctx, u, Right{verb, Flows, n}); err != nil {
				return Scope{}, err
			}
		}
	}
	err = c.Check(ctx, u, Right{Get, Nodes, ""})
	if denied := (*DeniedError)(nil); err != nil && !errors.As(err, &denied) {
		return Scope{}, err
	}
	s.Nodes = err == nil
	return s, nil
}

// ErrTooMany means that a request names too many namespaces.
var ErrTooMany = errors.New("too many namespaces")

// place says where an answer is kept, and which calls count as one. slots bounds the first calls for the key; when its answer
// has ended, further calls belong to Checker.calls. With a user, its share bounds the calls, too.
type place struct {
	slots     chan struct{}
	key, user string
}

// lookUp returns a kept answer, or a new one of the Authority. Failures to answer are not kept.
func lookUp[T any](ctx context.Context, c *Checker, all map[string]kept[T], at place, call func(context.Context) (T, time.Duration, error)) (T, error) {
	key := at.key
	c.mutex.Lock()
	k, ok := all[key]
	c.mutex.Unlock()
	if ok && c.now().Before(k.until) {
		return k.answer, k.err
	}
	if ok && k.err == nil {
		at.slots = c.calls
	}
	// One call serves all clients that wait for its answer, so that none of them may cancel it.
	answers := c.flight.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		leave, err := c.enter(ctx, at)
		if err != nil {
			return nil, err
		}
		defer leave()
		now := c.now()
		answer, lifetime, err := call(ctx)
		if err == nil || errors.Is(err, ErrUnauthenticated) {
			c.mutex.Lock()
			evict(all, key)
			all[key] = kept[T]{answer, err, now.Add(lifetime)}
			c.mutex.Unlock()
		}
		return answer, err
	})
	select {
	case a := <-answers:
		answer, _ := a.Val.(T)
		return answer, a.Err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// enter waits until the Authority may be called. First comes the share of the user, so that its calls that wait take no other
// slot. The result ends the call.
func (c *Checker) enter(ctx context.Context, at place) (leave func(), err error) {
	slots := []chan struct{}{at.slots}
	if at.user != "" {
		c.mutex.Lock()
		s := c.shares[at.user]
		if s == nil {
			s = &share{calls: make(chan struct{}, maxUser)}
			c.shares[at.user] = s
		}
		s.waiting++
		c.mutex.Unlock()
		slots = []chan struct{}{s.calls, at.slots}
	}
	var held []chan struct{}
	leave = func() {
		for _, slot := range held {
			<-slot
		}
		if at.user != "" {
			c.leaveShare(at.user)
		}
	}
	for _, slot := range slots {
		select {
		case slot <- struct{}{}:
			held = append(held, slot)
		case <-ctx.Done():
			leave()
			return nil, fmt.Errorf("too many clients wait for the API server: %w", ctx.Err())
		}
	}
	return leave, nil
}

// leaveShare ends a call of a user.
func (c *Checker) leaveShare(user string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if s := c.shares[user]; s.waiting == 1 {
		delete(c.shares, user)
	} else {
		s.waiting--
	}
}

// goesBefore reports whether an answer makes room before another one: refused tokens go first, then what ends first.
func (k kept[T]) goesBefore(o kept[T]) bool {
	if refused := k.err != nil; refused != (o.err != nil) {
		return refused
	}
	return k.until.Before(o.until)
}

// evict makes room for the answer of a key: it removes one other. Guesses therefore remove no valid token.
func evict[T any](all map[string]kept[T], key string) {
	if _, ok := all[key]; ok || len(all) < maxKept {
		return
	}
	var first string
	for key, k := range all {
		if first == "" || k.goesBefore(all[first]) {
			first = key
		}
	}
	delete(all, first)
}

// fingerprint identifies a user with all that decides about rights.
func fingerprint(u User) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q", u.Name, u.UID, slices.Sorted(slices.Values(u.Groups)))
	for _, key := range slices.Sorted(maps.Keys(u.Extra)) {
		fmt.Fprintf(&b, " %q %q", key, u.Extra[key])
	}
	sum := sha256.Sum256([]byte(b.String()))
	return string(sum[:])
}
