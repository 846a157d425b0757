// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Draft is a decoded manifest. Its reader completes the namespace and the name in Meta, and then calls
// Convert.
type Draft struct {
	Meta    metav1.Object
	Convert func() Result
	// Problems prevent the conversion: Convert must not be called.
	Problems []Remark
	Warnings []Remark
}

// Result is a converted manifest.
type Result struct {
	// Value is what Kind.Put accepts: the part of the object that can be enforced safely.
	Value any
	// Warnings are remarks on parts that are not enforced as written.
	Warnings []Remark
	// Errs make the object invalid. Enforced describes in one sentence how a stored invalid policy is enforced.
	Errs     field.ErrorList
	Enforced string
}

// apiObject is a pointer to an API type.
type apiObject[T any] interface {
	*T
	metav1.Object
}

// reads returns the read function of a kind whose objects decode to a T.
func reads[T any, P apiObject[T]](convert func(*T, Strictness) Result) func(*Kind, []byte, Strictness) Draft {
	return func(k *Kind, raw []byte, s Strictness) Draft {
		o, d := decode[T](k, raw, s)
		d.Meta, d.Convert = P(o), func() Result { return convert(o, s) }
		return d
	}
}

// decode reads an object strictly: unknown fields are warnings, values of a wrong type are problems.
func decode[T any](k *Kind, raw []byte, s Strictness) (*T, Draft) {
	var object T
	var d Draft
	strict, err := kjson.UnmarshalStrict(raw, &object)
	if err != nil {
		return nil, Draft{Problems: MisfitRemarks(raw, reflect.TypeFor[T](), err)}
	}
	for _, e := range strict {
		path := ""
		if fe, is := errors.AsType[kjson.FieldError](e); is {
			path = fe.FieldPath()
		}
		switch {
		case strings.HasPrefix(e.Error(), "duplicate"):
			d.Problems = append(d.Problems, Remark{path, "written twice: write it once"})
		case path == "status" && k.Name == kindNetworkPolicy:
			// NetworkPolicy had a status in 1.24 to 1.27; files still carry it.
		case s == Stored && !k.Policy:
			// A field of a newer API; for other kinds the known fields are enough.
		default:
			d.Warnings = append(d.Warnings, Remark{path, "no such field; it is ignored, as the API server does"})
		}
	}
	return &object, d
}

// MisfitRemarks lists the values of a document that do not fit a type. err is the error of decoding it, and the
// answer if no such value is found.
func MisfitRemarks(raw []byte, t reflect.Type, err error) []Remark {
	if found := Remarks(misfits(raw, t)); len(found) > 0 {
		return found
	}
	return []Remark{{"", OneLine(strings.TrimPrefix(err.Error(), "json: ")) + ": use the type that the API defines"}}
}
