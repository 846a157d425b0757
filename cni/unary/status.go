// SPDX-License-Identifier: Apache-2.0

package unary

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// status is the error that the trailers tell, with its details, or nil.
func (c *call) status() error {
	if got := c.fields[":status"]; got != "200" {
		return status.Errorf(codes.Unavailable, "the server answered with HTTP status %q", got)
	}
	text := c.fields["grpc-status"]
	code, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return status.Errorf(codes.Internal, "the server answered with gRPC status %q", text)
	}
	if codes.Code(code) == codes.OK {
		return nil
	}
	if details, ok := c.fields["grpc-status-details-bin"]; ok {
		// With or without padding.
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "="))
		full := &spb.Status{}
		if err == nil && proto.Unmarshal(b, full) == nil && full.Code == int32(code) {
			return status.FromProto(full).Err()
		}
	}
	message := c.fields["grpc-message"]
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	return status.Error(codes.Code(code), message)
}
