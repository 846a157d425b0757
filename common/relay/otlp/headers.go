// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxHeaderFile bounds the file of headers, in bytes, and maxHeaders their number.
	maxHeaderFile, maxHeaders = 16 << 10, 32
	// minSecret is the length from which a value is hidden in texts.
	minSecret = 4
)

// headerName is the form of names that gRPC sends as text.
var headerName = regexp.MustCompile(`^[a-z0-9_.-]+$`)

// Headers are headers of calls, such as a token. They are read from a file for each call, so that they can be replaced. No
// error contains a value.
type Headers struct {
	file     string
	insecure bool

	mutex  sync.Mutex
	values map[string]string
}

// NewHeaders reads a file with a line "name: value" for each header. Lines that are empty or begin with # are ignored. insecure
// lets headers go over connections without TLS.
func NewHeaders(file string, insecure bool) (*Headers, error) {
	h := &Headers{file: file, insecure: insecure}
	return h, h.read()
}

func (h *Headers) read() error {
	info, err := os.Stat(h.file)
	switch {
	case err != nil:
		return fmt.Errorf("read headers: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxHeaderFile:
		return fmt.Errorf("read headers: %s is no regular file of at most %d bytes", h.file, maxHeaderFile)
	case info.Mode().Perm()&0o007 != 0:
		return fmt.Errorf("read headers: every user may read or write %s, which holds secrets: give it mode 0600 or 0440", h.file)
	}
	text, err := os.ReadFile(h.file)
	if err != nil {
		return fmt.Errorf("read headers: %w", err)
	}
	values, err := parseHeaders(string(text))
	if err != nil {
		return fmt.Errorf("read headers of %s: %w", h.file, err)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.values = values
	return nil
}

// parseHeaders reads lines of headers. Its errors name lines, not their content.
func parseHeaders(text string) (map[string]string, error) {
	all, n := make(map[string]string), 0
	for line := range strings.Lines(text) {
		n++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		_, again := all[name]
		switch {
		case !ok || value == "":
			return nil, fmt.Errorf("line %d: give NAME: VALUE", n)
		case !headerName.MatchString(name) || strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin"):
			return nil, fmt.Errorf("line %d: the name is no text header of gRPC: use letters, digits, -, _ and ., without the prefix grpc- or the suffix -bin", n)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, fmt.Errorf("line %d: the value has characters that are not printable ASCII", n)
		case again:
			return nil, fmt.Errorf("line %d: the header appears twice", n)
		case len(all) == maxHeaders:
			return nil, fmt.Errorf("line %d: more than %d headers", n, maxHeaders)
		}
		all[name] = value
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no header: give lines of NAME: VALUE")
	}
	return all, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials. While the file cannot be read, calls fail and are repeated.
func (h *Headers) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if err := h.read(); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.values, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (h *Headers) RequireTransportSecurity() bool { return !h.insecure }

// hide replaces the values in a text, and the parts of values such as "Bearer TOKEN".
func (h *Headers) hide(text string) string {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, v := range h.values {
		for _, secret := range append([]string{v}, strings.Fields(v)...) {
			if len(secret) >= minSecret && !strings.EqualFold(secret, "bearer") && !strings.EqualFold(secret, "basic") {
				text = strings.ReplaceAll(text, secret, "(hidden)")
			}
		}
	}
	return text
}
