// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Group is the API group of the virtual resources. No object of it exists.
const Group = "inspect.isthmus.dev"

// The virtual resources. Flows belong to namespaces, Nodes to the cluster.
const (
	Flows = "flows"
	Nodes = "nodes"
)

// The verbs: Get reads what is kept, Watch follows what is new.
const (
	Get   = "get"
	Watch = "watch"
)

// Right is a verb on a virtual resource.
type Right struct {
	Verb, Resource string
	// Namespace is empty for all namespaces, and for nodes.
	Namespace string
}

// String returns the right in the words of kubectl.
func (r Right) String() string {
	where := "in namespace " + r.Namespace
	if r.Namespace == "" {
		where = "in all namespaces"
	}
	if r.Resource == Nodes {
		where = "at the cluster scope"
	}
	return fmt.Sprintf("%s %s.%s %s", r.Verb, r.Resource, Group, where)
}

// User is an authenticated client.
type User struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// ErrUnauthenticated means that a token is missing or not valid.
var ErrUnauthenticated = errors.New("the token is missing or not valid")

// DeniedError means that a user lacks a right.
type DeniedError struct {
	User  string
	Right Right
}

// Error names the user and the missing right.
func (e *DeniedError) Error() string { return fmt.Sprintf("user %q may not %s", e.User, e.Right) }

// Authority authenticates tokens and decides about rights. It is safe for concurrent use.
type Authority interface {
	// Authenticate returns the user of a token, or ErrUnauthenticated. Another error means that there is no answer.
	Authenticate(ctx context.Context, token string) (User, error)
	// Allowed reports whether a user has a right. An error means that there is no answer.
	Allowed(ctx context.Context, user User, right Right) (bool, error)
}

// Scope is what a client may read. The zero value reads nothing.
type Scope struct {
	// All is true if the client reads the flows of all namespaces. Otherwise it reads those of Namespaces, sorted.
	All        bool
	Namespaces []string
	// Nodes is true if the client reads data of nodes.
	Nodes bool
}

// Everything is the scope of a client without limits.
var Everything = Scope{All: true, Nodes: true}

// Sees reports whether the scope holds a namespace. No scope but that of all namespaces holds the empty name.
func (s Scope) Sees(namespace string) bool {
	if s.All {
		return true
	}
	_, found := slices.BinarySearch(s.Namespaces, namespace)
	return found && namespace != ""
}

// Equal reports whether two scopes are the same.
func (s Scope) Equal(o Scope) bool {
	return s.All == o.All && s.Nodes == o.Nodes && slices.Equal(s.Namespaces, o.Namespaces)
}
