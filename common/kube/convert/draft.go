// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// draft is a decoded manifest. Its reader completes the namespace and the name in meta, and then calls
// convert.
type draft struct {
	meta    metav1.Object
	convert func() result
	// problems prevent the conversion; meta and convert may then be nil.
	problems []remark
	warnings []remark
}

// result is a converted manifest.
type result struct {
	// value is what put accepts: the part of the object that can be enforced safely.
	value any
	// warnings are remarks on parts that are not enforced as written.
	warnings []remark
	// errs make the object invalid. enforced says in one sentence how a stored invalid policy is enforced.
	errs     field.ErrorList
	enforced string
}

// apiObject is a pointer to an API type.
type apiObject[T any] interface {
	*T
	metav1.Object
}

// reads returns the read function of a kind whose objects decode to a T.
func reads[T any, P apiObject[T]](convert func(*T, strictness) result) func(*Kind, []byte, strictness) draft {
	return func(k *Kind, raw []byte, s strictness) draft {
		o, d := decode[T](k, raw, s)
		d.meta, d.convert = P(o), func() result { return convert(o, s) }
		return d
	}
}

// decode reads an object strictly: unknown fields are warnings, values of a wrong type are problems.
func decode[T any](k *Kind, raw []byte, s strictness) (*T, draft) {
	var object T
	var d draft
	strict, err := kjson.UnmarshalStrict(raw, &object)
	if err != nil {
		return nil, draft{problems: misfitRemarks(raw, reflect.TypeFor[T](), err)}
	}
	for _, e := range strict {
		path := ""
		if fe, is := e.(kjson.FieldError); is {
			path = fe.FieldPath()
		}
		switch {
		case strings.HasPrefix(e.Error(), "duplicate"):
			d.problems = append(d.problems, remark{path, "written twice: write it once"})
		case path == "status" && k.Name == kindNetworkPolicy:
			// NetworkPolicy had a status in 1.24 to 1.27; files still carry it.
		case s == stored && !k.Policy:
			// A field of a newer API; for other kinds the known fields are enough.
		default:
			d.warnings = append(d.warnings, remark{path, "no such field; it is ignored, as the API server does"})
		}
	}
	return &object, d
}

func misfitRemarks(raw []byte, t reflect.Type, err error) []remark {
	if found := remarks(misfits(raw, t)); len(found) > 0 {
		return found
	}
	return []remark{{"", oneLine(strings.TrimPrefix(err.Error(), "json: ")) + ": use the type that the API defines"}}
}
