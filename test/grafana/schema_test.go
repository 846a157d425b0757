// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const sdk = "github.com/grafana/grafana-foundation-sdk/go"

// schema checks dashboards. The types of the SDK know fields, their types and ranges; its constants are the values of enumerations,
// which its decoder does not check.
type schema struct {
	dir    string // of the SDK
	values map[string]map[string][]string
}

// newSchema makes the types of all panels and queries known.
func newSchema() (*schema, error) {
	plugins.RegisterDefaultPlugins()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", sdk).Output()
	return &schema{strings.TrimSpace(string(dir)), make(map[string]map[string][]string)}, err
}

// strict decodes a value with its strict decoder. That returns an empty list of errors if there are none.
func strict(at string, raw []byte, into interface{ UnmarshalJSONStrict([]byte) error }) error {
	err := into.UnmarshalJSONStrict(raw)
	if err == nil || reflect.ValueOf(err).Kind() == reflect.Slice && reflect.ValueOf(err).Len() == 0 {
		return nil
	}
	return fmt.Errorf("%s%w", at, err)
}

// check returns all differences of a dashboard to the schema.
func (s *schema) check(raw []byte) error {
	errs := []error{strict("", raw, &dashboard.Dashboard{})}
	// The strict decoder leaves out panels, and does not look into their fieldConfig.
	var d dashboard.Dashboard
	if err := json.Unmarshal(raw, &d); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, d.Validate())
	var fields struct {
		Panels []struct {
			Title       string
			FieldConfig json.RawMessage
		}
	}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for i, p := range d.Panels {
		if p.Panel == nil { // a row, whose panels are beside it
			if p.RowPanel == nil || len(p.RowPanel.Panels) > 0 {
				errs = append(errs, fmt.Errorf("panel %q: put its panels beside the row", fields.Panels[i].Title))
			}
			continue
		}
		errs = append(errs, checkPanel(p.Panel, fields.Panels[i].FieldConfig))
	}
	return errors.Join(append(errs, s.enumerations("", reflect.ValueOf(d)))...)
}

// checkPanel checks what the types of the SDK accept for the sake of unknown plugins.
func checkPanel(p *dashboard.Panel, config []byte) error {
	at := fmt.Sprintf("panel %q: ", *p.Title)
	errs := []error{strict(at+"fieldConfig.", config, &dashboard.FieldConfigSource{})}
	if _, known := cog.ConfigForPanelcfgVariant(p.Type); !known {
		errs = append(errs, fmt.Errorf("%sthe schema has no panel of type %q", at, p.Type))
	}
	for i, q := range p.Targets {
		if _, unknown := q.(variants.UnknownDataquery); unknown {
			errs = append(errs, fmt.Errorf("%stargets[%d]: the schema does not know its data source", at, i))
		}
	}
	return errors.Join(errs...)
}

// enumerations returns the values that are not in their enumeration.
func (s *schema) enumerations(at string, v reflect.Value) error {
	var errs []error
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return s.enumerations(at, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			errs = append(errs, s.enumerations(at+"."+v.Type().Field(i).Name, v.Field(i)))
		}
	case reflect.Slice:
		for i := range v.Len() {
			errs = append(errs, s.enumerations(fmt.Sprintf("%s[%d]", at, i), v.Index(i)))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			errs = append(errs, s.enumerations(fmt.Sprintf("%s[%v]", at, key), v.MapIndex(key)))
		}
	case reflect.String, reflect.Int64:
		known, err := s.constants(v.Type())
		if err != nil {
			return err
		}
		if value := fmt.Sprint(v); len(known) > 0 && !slices.Contains(known, value) {
			return fmt.Errorf("%s is %q: want one of %s", strings.TrimPrefix(at, "."), value, strings.Join(known, ", "))
		}
	}
	return errors.Join(errs...)
}

// constants returns the values of an enumeration of the SDK; none for other types.
func (s *schema) constants(of reflect.Type) ([]string, error) {
	name, ok := strings.CutPrefix(of.PkgPath(), sdk+"/")
	if !ok {
		return nil, nil
	}
	if s.values[name] == nil {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(s.dir, name, "types_gen.go"), nil, 0)
		if err != nil {
			return nil, err
		}
		s.values[name] = make(map[string][]string)
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, spec := range g.Specs {
					s.add(name, spec.(*ast.ValueSpec))
				}
			}
		}
	}
	return s.values[name][of.Name()], nil
}

// add adds a constant of a package.
func (s *schema) add(name string, c *ast.ValueSpec) {
	of, typed := c.Type.(*ast.Ident)
	if !typed || len(c.Values) != 1 {
		return
	}
	if text, ok := c.Values[0].(*ast.BasicLit); ok {
		value := text.Value
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		s.values[name][of.Name] = append(s.values[name][of.Name], value)
	}
}
