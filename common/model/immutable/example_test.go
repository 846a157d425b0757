// SPDX-License-Identifier: Apache-2.0

package immutable_test

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// An edit leaves the earlier version as it was.
func ExampleMap_With() {
	before := immutable.MakeMap(map[string]int{"web": 80})
	after := before.With("api", 8080).With("web", 443)
	was, _ := before.Get("web")
	is, _ := after.Get("web")
	fmt.Println(was, before.Len(), is, after.Len())
	// Output: 80 1 443 2
}

// Changes lists the keys that were added, removed or set to another value.
func ExampleMap_Changes() {
	before := immutable.MakeMap(map[string]int{"web": 80, "api": 8080, "db": 5432})
	after := before.With("web", 443).With("api", 8080).With("cache", 6379).Without("db")
	for _, name := range slices.Sorted(after.Changes(before)) {
		fmt.Println(name)
	}
	// Output:
	// cache
	// db
	// web
}
