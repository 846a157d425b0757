// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/isthmus-net/isthmus/common/model"
)

// MaxObjects bounds the objects that ReadObjects accepts.
const MaxObjects = 1_000_000

// object is a line of WriteObjects. One field is set.
type object struct {
	Namespace *model.Namespace `json:",omitempty"`
	Node      *model.Node      `json:",omitempty"`
	Pod       *model.Pod       `json:",omitempty"`
	Policy    *model.Policy    `json:",omitempty"`
}

// WriteObjects writes the objects that policy depends on, one JSON object per line. It holds one of them at a time.
func WriteObjects(out io.Writer, s *model.Snapshot) error {
	encoder := json.NewEncoder(out)
	for _, x := range s.Namespaces.All() {
		if err := encoder.Encode(object{Namespace: x}); err != nil {
			return err
		}
	}
	for _, x := range s.Nodes.All() {
		if err := encoder.Encode(object{Node: x}); err != nil {
			return err
		}
	}
	for _, x := range s.Pods.All() {
		if err := encoder.Encode(object{Pod: x}); err != nil {
			return err
		}
	}
	for _, x := range s.Policies.All() {
		if err := encoder.Encode(object{Policy: x}); err != nil {
			return err
		}
	}
	return nil
}

// ReadObjects reads what WriteObjects wrote, of at most max bytes.
func ReadObjects(in io.Reader, max int64) (*model.Snapshot, error) {
	var c Cluster
	limited := &io.LimitedReader{R: in, N: max + 1}
	decoder := json.NewDecoder(limited)
	for n := 0; ; n++ {
		var o object
		err := decoder.Decode(&o)
		switch {
		case limited.N == 0 || n == MaxObjects:
			return nil, fmt.Errorf("the objects have more than %d bytes, or are more than %d", max, MaxObjects)
		case errors.Is(err, io.EOF):
			if err := c.Check(); err != nil {
				return nil, err
			}
			return c.Objects().Snapshot(), nil
		case err != nil:
			return nil, fmt.Errorf("read objects: %w", err)
		}
		switch {
		case o.Namespace != nil:
			c.Namespaces = append(c.Namespaces, o.Namespace)
		case o.Node != nil:
			c.Nodes = append(c.Nodes, o.Node)
		case o.Pod != nil:
			c.Pods = append(c.Pods, o.Pod)
		case o.Policy != nil:
			c.Policies = append(c.Policies, o.Policy)
		default:
			return nil, errors.New("read objects: a line holds none of the known kinds")
		}
	}
}
