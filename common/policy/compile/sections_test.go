// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// TestSameStateCoversEveryField changes every field of every section of a State, found by reflection. A
// Compiler returns the previous State if the next one is the same: a change of a field that the comparison
// omits would never reach the data path.
func TestSameStateCoversEveryField(t *testing.T) {
	was := &model.State{}
	if !compile.SameState(was, &model.State{}) {
		t.Fatal("two empty States differ")
	}
	fields := 0
	var walk func(path string, v reflect.Value, root *model.State)
	walk = func(path string, v reflect.Value, root *model.State) {
		if section := v.Type() == reflect.TypeFor[model.PolicyState]() || v.Type() == reflect.TypeFor[model.FabricState](); section || path == "State" {
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i), root)
			}
			return
		}
		fields++
		v.Set(otherValue(t, path, v.Type()))
		if compile.SameState(was, root) {
			t.Errorf("a change of %s is not noticed", path)
		}
		v.SetZero()
	}
	s := &model.State{}
	walk("State", reflect.ValueOf(s).Elem(), s)
	if fields < 15 {
		t.Errorf("only %d fields were changed", fields)
	}
}

// otherValue returns a value of a field that differs from its zero value.
func otherValue(t *testing.T, path string, of reflect.Type) reflect.Value {
	t.Helper()
	v := reflect.New(of).Elem()
	switch of.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Uint32:
		v.SetUint(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(of, 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(of))
	case reflect.Pointer:
		v.Set(reflect.New(of.Elem()))
	default:
		if of != reflect.TypeFor[immutable.Map[netip.Addr, model.PeerClass]]() {
			t.Fatalf("%s has type %s: say here which value differs", path, of)
		}
		v.Set(reflect.ValueOf(immutable.MakeMap(map[netip.Addr]model.PeerClass{netip.IPv6Loopback(): 1})))
	}
	return v
}
