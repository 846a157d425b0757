// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

// validation is an object and the answer of the API server to it. It counts as one query,
// which no engine decides.
type validation struct {
	object json.RawMessage
	valid  bool
	// errors are those of the API server, each "path: text". strict holds its warnings under
	// strict field validation.
	errors, strict []string
	// defaulted is the spec with the defaults of the API server; null if there is none.
	defaulted json.RawMessage
}

// judge compares the result for the object here with that of the API server.
func (v *validation) judge(c *testCase, o *outcome) {
	o.queries = 1
	objects, warnings, errs := manifests.Parse("object.json", v.object, manifests.DefaultLimits())
	var wrong []string
	if accepted := len(errs) == 0; accepted != v.valid {
		wrong = append(wrong, fmt.Sprintf("want valid=%t, got %t", v.valid, accepted))
	}
	if v.valid && len(errs) == 0 && len(objects.Policies) != 1 {
		wrong = append(wrong, fmt.Sprintf("want one policy, got %d", len(objects.Policies)))
	}
	wrong = append(wrong, v.compareErrors(errs)...)
	wrong = append(wrong, v.compareWarnings(warnings)...)
	wrong = append(wrong, v.compareDefaults()...)
	if len(wrong) == 0 {
		return
	}
	o.failed = 1
	fmt.Fprintf(&o.text, "FAIL %s %s: %s\n", c.at, c.title, strings.Join(wrong, "; "))
	for _, e := range errs {
		fmt.Fprintf(&o.text, "  here:       %s\n", about(e))
	}
	for _, e := range v.errors {
		fmt.Fprintf(&o.text, "  API server: %s\n", e)
	}
}

// compareErrors expects an error for every field that the API server rejects. For a value of
// the wrong type the API server names no field.
func (v *validation) compareErrors(got []manifests.DocumentError) (wrong []string) {
	for _, w := range v.errors {
		path, _, _ := strings.Cut(w, ": ")
		if path != "decode" && !slices.ContainsFunc(got, func(e manifests.DocumentError) bool { return e.Field == path }) {
			wrong = append(wrong, "no error on "+path)
		}
	}
	return wrong
}

// compareWarnings expects a warning for every unknown field except in status. Policies have
// no status, but stored objects may have one, and a warning about it helps no user.
func (v *validation) compareWarnings(got []manifests.Warning) (wrong []string) {
	for _, s := range v.strict {
		path := strings.Trim(strings.TrimPrefix(s, "strict: unknown field "), `"`)
		if path != "status" && !slices.ContainsFunc(got, func(w manifests.Warning) bool { return w.Field == path }) {
			wrong = append(wrong, "no warning on "+path)
		}
	}
	return wrong
}

func (v *validation) compareDefaults() []string {
	if len(v.defaulted) == 0 || string(v.defaulted) == "null" {
		return nil
	}
	spec, err := convert.DefaultSpec(v.object)
	if err != nil {
		return []string{err.Error()}
	}
	var want, got any
	if err := json.Unmarshal(v.defaulted, &want); err != nil {
		return []string{"defaulted: " + err.Error()}
	}
	if err := json.Unmarshal(spec, &got); err != nil {
		return []string{err.Error()}
	}
	if !reflect.DeepEqual(want, got) {
		return []string{fmt.Sprintf("defaults: want %s, got %s", v.defaulted, spec)}
	}
	return nil
}
