// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// vector is one line in a file of published cases.
type vector struct {
	Name    string
	Objects []json.RawMessage
	Queries []struct {
		Src, Dst, Proto string
		Port            uint16
	}
}

// Vectors calls f for every case in a compressed file of JSON lines. It ignores the verdicts in the
// file; other tests compare them.
func Vectors(path string, f func(*Case) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		c, err := readVector(lines.Bytes())
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		if err := f(c); err != nil {
			return fmt.Errorf("%s: line %d: %w", path, n, err)
		}
	}
	return lines.Err()
}

func readVector(line []byte) (*Case, error) {
	var v vector
	if err := json.Unmarshal(line, &v); err != nil {
		return nil, err
	}
	c, err := NewCase(v.Name, v.Objects)
	if err != nil {
		return nil, err
	}
	for i, q := range v.Queries {
		src, err := c.address(q.Src)
		if err != nil {
			return nil, fmt.Errorf("case %s: query %d: src: %w", v.Name, i, err)
		}
		dst, err := c.address(q.Dst)
		if err != nil {
			return nil, fmt.Errorf("case %s: query %d: dst: %w", v.Name, i, err)
		}
		p, err := model.ParseProtocol(q.Proto)
		if err != nil {
			return nil, fmt.Errorf("case %s: query %d: %w", v.Name, i, err)
		}
		c.Flows = append(c.Flows, model.Flow{Src: src, Dst: dst, Protocol: p, Port: q.Port})
	}
	return c, nil
}

// address parses "ns/pod", "ns/pod@ADDRESS" or "ip:ADDRESS".
func (c *Case) address(end string) (netip.Addr, error) {
	if text, ok := strings.CutPrefix(end, "ip:"); ok {
		return netip.ParseAddr(text)
	}
	id, text, exact := strings.Cut(end, "@")
	if exact {
		return netip.ParseAddr(text)
	}
	for _, p := range c.Pods {
		if p.Namespace+"/"+p.Name == id && len(p.Status.PodIPs) > 0 {
			return netip.ParseAddr(p.Status.PodIPs[0].IP)
		}
	}
	return netip.Addr{}, fmt.Errorf("no pod %s with an address", id)
}
