// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake is an Authority with users by token and rights by user.
type fake struct {
	mutex  sync.Mutex
	calls  int
	down   error
	users  map[string]User
	rights map[string]bool // user, right
}

func (f *fake) Authenticate(_ context.Context, token string) (User, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.calls++
	if u, ok := f.users[token]; ok || f.down != nil {
		return u, f.down
	}
	return User{}, ErrUnauthenticated
}

func (f *fake) Allowed(_ context.Context, u User, r Right) (bool, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.calls++
	return f.rights[u.Name+" "+r.String()], f.down
}

func (f *fake) set(change func()) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	change()
}

func TestScope(t *testing.T) {
	f := &fake{users: map[string]User{"t": {Name: "eve"}}, rights: map[string]bool{}}
	now := time.Unix(1000, 0)
	c := NewChecker(f, func() time.Time { return now })
	u, err := c.User(t.Context(), "t")
	if err != nil || u.Name != "eve" {
		t.Fatalf("user %v, %v", u, err)
	}
	check := func(what, want string, namespaces ...string) {
		t.Helper()
		s, err := c.Scope(t.Context(), u, Watch, namespaces)
		if got := fmt.Sprint(s, " ", err); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	check("nothing", `{false [] false} user "eve" may not watch flows.inspect.isthmus.dev in all namespaces`)
	check("a namespace without right", `{false [] false} user "eve" may not watch flows.inspect.isthmus.dev in namespace shop`, "shop")
	f.set(func() { f.rights["eve watch flows.inspect.isthmus.dev in namespace shop"] = true })
	check("a denial is kept", `{false [] false} user "eve" may not watch flows.inspect.isthmus.dev in namespace shop`, "shop")
	now = now.Add(DenyFor)
	check("its namespace", "{false [shop] false} <nil>", "shop", "shop")
	check("another one too", `{false [] false} user "eve" may not watch flows.inspect.isthmus.dev in namespace pay`, "pay", "shop")
	calls := f.calls
	check("kept", "{false [shop] false} <nil>", "shop")
	if f.calls != calls {
		t.Errorf("%d calls for answers that are kept", f.calls-calls)
	}
	f.set(func() { f.rights["eve get nodes.inspect.isthmus.dev at the cluster scope"] = true })
	now = now.Add(AllowFor)
	check("nodes", "{false [shop] true} <nil>", "shop")
	f.set(func() { f.rights["eve watch flows.inspect.isthmus.dev in all namespaces"] = true })
	now = now.Add(DenyFor)
	check("all", "{true [] true} <nil>")
	check("too many", fmt.Sprintf("{false [] false} too many namespaces: the request names %d namespaces: name at most %d", MaxNamespaces+1, MaxNamespaces), make([]string, MaxNamespaces+1)...)

	f.set(func() { f.down = errors.New("connection refused"); clear(f.rights) })
	check("kept while the API is down", "{true [] true} <nil>")
	now = now.Add(AllowFor)
	check("refused while the API is down", "{false [] false} connection refused")
	f.set(func() { f.down = nil })
	check("failures are not kept", `{false [] false} user "eve" may not watch flows.inspect.isthmus.dev in all namespaces`)
}

func TestTokens(t *testing.T) {
	f := &fake{users: map[string]User{"t": {Name: "eve"}}}
	now := time.Unix(1000, 0)
	c := NewChecker(f, func() time.Time { return now })
	for _, token := range []string{"", "other", strings.Repeat("x", maxToken+1)} {
		if _, err := c.User(t.Context(), token); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("token of %d bytes: %v", len(token), err)
		}
	}
	if f.calls != 1 {
		t.Errorf("%d calls, want 1: of the token that may be valid", f.calls)
	}
	for i := range 2*maxKept + 10 {
		_, _ = c.User(t.Context(), fmt.Sprint("guess", i))
	}
	if n := len(c.users); n > maxKept {
		t.Errorf("%d answers are kept", n)
	}
	for key := range c.users {
		if strings.Contains(key, "guess") {
			t.Fatalf("a token is kept: %q", key)
		}
	}
	f.set(func() { f.down = errors.New("timeout") })
	if _, err := c.User(t.Context(), "t"); err == nil || errors.Is(err, ErrUnauthenticated) {
		t.Errorf("the API is down: %v", err)
	}
	a, b := User{Name: "a", Groups: []string{"x", "y"}}, User{Name: "a", Groups: []string{"x y"}}
	if fingerprint(a) == fingerprint(b) || fingerprint(a) != fingerprint(User{Name: "a", Groups: []string{"y", "x"}}) {
		t.Error("fingerprints of users")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.User(ctx, "t"); err == nil {
		t.Error("a call without time succeeds")
	}
}

// guessed is an Authority that gives no answer about the tokens guess...
type guessed struct{ fake }

func (g *guessed) Authenticate(ctx context.Context, token string) (User, error) {
	if strings.HasPrefix(token, "guess") {
		<-ctx.Done()
		return User{}, ctx.Err()
	}
	return g.fake.Authenticate(ctx, token)
}

// TestGuessesDoNotBlock checks that clients with tokens that were valid before do not wait for calls about others.
func TestGuessesDoNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &guessed{fake{users: map[string]User{"t": {Name: "eve"}}, rights: map[string]bool{"eve get nodes.inspect.isthmus.dev at the cluster scope": true}}}
		c := NewChecker(g, nil)
		u, err := c.User(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * AllowFor)
		for i := range 4 * maxCalls {
			go func() { _, _ = c.User(t.Context(), fmt.Sprint("guess", i)) }()
		}
		synctest.Wait()
		start := time.Now()
		if _, err := c.User(t.Context(), "t"); err != nil {
			t.Errorf("the user of a valid token: %v", err)
		}
		if err := c.Check(t.Context(), u, Right{Get, Nodes, ""}); err != nil {
			t.Errorf("its right: %v", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("it waits %s", d)
		}
		if n := len(c.unknown); n != maxUnknown {
			t.Errorf("%d calls about unknown tokens at a time, want %d", n, maxUnknown)
		}
		time.Sleep(2 * callTimeout)
	})
}

// slow is an Authority that gives no answer about the rights of mallory.
type slow struct{ fake }

func (s *slow) Allowed(ctx context.Context, u User, r Right) (bool, error) {
	if u.Name == "mallory" {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return s.fake.Allowed(ctx, u, r)
}

// TestUserTakesItsShare checks that a user who names many namespaces, with several tokens, does not keep others waiting.
func TestUserTakesItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{fake{rights: map[string]bool{"eve get nodes.inspect.isthmus.dev at the cluster scope": true}}}
		c := NewChecker(s, nil)
		for i := range 4 * maxCalls {
			u := User{Name: "mallory", Extra: map[string][]string{"credential-id": {fmt.Sprint(i % 3)}}}
			go func() { _ = c.Check(t.Context(), u, Right{Get, Flows, fmt.Sprint("n", i)}) }()
		}
		synctest.Wait()
		start := time.Now()
		if err := c.Check(t.Context(), User{Name: "eve"}, Right{Get, Nodes, ""}); err != nil || time.Since(start) != 0 {
			t.Errorf("another user: %v after %s", err, time.Since(start))
		}
		if n := len(c.calls); n != maxUser {
			t.Errorf("%d calls about one user at a time, want %d", n, maxUser)
		}
		time.Sleep(2 * callTimeout)
		synctest.Wait()
		if len(c.shares) != 0 || len(c.calls) != 0 {
			t.Errorf("%d shares and %d calls are left", len(c.shares), len(c.calls))
		}
	})
}

// TestGuessesEvictNoUser checks that refused tokens do not remove the answer about a valid one, and that without refused ones
// only the oldest answer goes.
func TestGuessesEvictNoUser(t *testing.T) {
	f := &fake{users: make(map[string]User)}
	now := time.Unix(1000, 0)
	c := NewChecker(f, func() time.Time { return now })
	for i := range maxKept {
		token := fmt.Sprint("t", i)
		f.users[token] = User{Name: token}
		if _, err := c.User(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Microsecond)
	}
	for i := range 10 {
		if _, err := c.User(t.Context(), fmt.Sprint("guess", i)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
	}
	calls := f.calls
	for i := range maxKept {
		if _, err := c.User(t.Context(), fmt.Sprint("t", maxKept-1-i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.calls - calls; n != 1 || len(c.users) != maxKept {
		t.Errorf("%d answers are gone, and %d kept", n, len(c.users))
	}
}
