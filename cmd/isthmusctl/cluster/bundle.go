// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"os"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// fromBundles returns the objects of the paths that are Bundles, and the other paths.
func fromBundles(paths []string) (others []string, objects model.Objects, failed *manifests.DocumentError) {
	for _, path := range paths {
		b, err := ReadBundle(path)
		if err != nil {
			return nil, objects, &manifests.DocumentError{File: path, Detail: err.Error()}
		}
		if b == nil {
			others = append(others, path)
			continue
		}
		objects = merge(objects, b.Cluster.Objects())
	}
	return others, objects, nil
}

// ReadBundle reads a file that isthmusctl bundle wrote. It returns nil if the path is anything else.
func ReadBundle(path string) (*inspect.Bundle, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, nil // the reader of manifests names the error
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	in := bufio.NewReader(f)
	if first, _ := in.Peek(2); !inspect.IsBundle(first) {
		return nil, nil
	}
	return inspect.Read(in)
}

// merge returns the objects of both. Of two with one name, the later counts, as everywhere.
func merge(a, b model.Objects) model.Objects {
	b.Namespaces = append(a.Namespaces, b.Namespaces...)
	b.Nodes = append(a.Nodes, b.Nodes...)
	b.Pods = append(a.Pods, b.Pods...)
	b.Policies = append(a.Policies, b.Policies...)
	b.DenyLists = append(a.DenyLists, b.DenyLists...)
	return b
}
