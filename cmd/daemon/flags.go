// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// accepted describes the values of flags by their types.
var accepted = map[string]string{
	"int":            "a whole number",
	"uint16":         "a number from 0 to 65535",
	"uint32":         "a number from 0 to 4294967295",
	"duration":       "a duration with its unit, such as 30s or 5m",
	"bool":           "true or false",
	"stringToInt":    "NAME=NUMBER",
	"stringToString": "NAME=VALUE",
}

// FlagError says which values a flag takes, instead of the words of the parser. Other errors about flags stay.
func FlagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	if text := accepted[invalid.GetFlag().Value.Type()]; text != "" {
		return fmt.Errorf("--%s %q: give %s", invalid.GetFlag().Name, invalid.GetValue(), text)
	}
	return err
}
