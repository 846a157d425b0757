// SPDX-License-Identifier: Apache-2.0

package model

import "encoding/json"

// MarshalJSON returns the labels as an object.
func (l Labels) MarshalJSON() ([]byte, error) {
	all := make(map[string]string)
	for k, v := range l.All() {
		all[k] = v
	}
	return json.Marshal(all)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (l *Labels) UnmarshalJSON(raw []byte) error {
	var all map[string]string
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	*l = MakeLabels(all)
	return nil
}

// MarshalJSON returns the requirements as a list.
func (s Selector) MarshalJSON() ([]byte, error) { return json.Marshal(s.requirements) }

// UnmarshalJSON is the inverse of MarshalJSON.
func (s *Selector) UnmarshalJSON(raw []byte) error {
	var all []Requirement
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	for i, r := range all {
		if r.Operator > DoesNotExist { // no API has it: match nothing
			all[i].Operator, all[i].Values = In, nil
		}
	}
	*s = MakeSelector(all...)
	return nil
}
