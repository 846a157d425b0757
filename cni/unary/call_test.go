// SPDX-License-Identifier: Apache-2.0

package unary_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-net/isthmus/cni/unary"
	"github.com/isthmus-net/isthmus/common/cniapi"
	"github.com/isthmus-net/isthmus/common/cniapi/rpc"
)

// server answers with gRPC's own library.
type server struct {
	rpc.UnimplementedCNIServer
	got  chan proto.Message
	wait func(context.Context)
	err  error
	long string
}

func (s *server) Add(ctx context.Context, r *cniapi.AddRequest) (*cniapi.AddResponse, error) {
	s.got <- r
	if s.wait != nil {
		s.wait(ctx)
	}
	return &cniapi.AddResponse{HostIfName: "ist0", Mtu: 1450, Addresses: []string{"10.0.0.2/32", s.long}}, s.err
}

func (s *server) GC(_ context.Context, r *cniapi.GCRequest) (*cniapi.GCResponse, error) {
	s.got <- r
	return &cniapi.GCResponse{}, nil
}

// start serves and returns what calls a method.
func start(t *testing.T, s *server) (*grpc.Server, func(ctx context.Context, method string, q, r proto.Message) error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.got = make(chan proto.Message, 1)
	g := grpc.NewServer()
	rpc.RegisterCNIServer(g, s)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return g, func(ctx context.Context, method string, q, r proto.Message) error {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return unary.Call(ctx, conn, method, q, r)
	}
}

func TestAnswer(t *testing.T) {
	for _, long := range []int{0, 1, 17000, 1 << 20} {
		s := &server{long: strings.Repeat("x", long)}
		_, call := start(t, s)
		q := &cniapi.AddRequest{Attachment: &cniapi.Attachment{ContainerId: "c", IfName: "eth0"}, PodName: "web"}
		r := &cniapi.AddResponse{}
		if err := call(t.Context(), rpc.CNI_Add_FullMethodName, q, r); err != nil {
			t.Fatal(err)
		}
		if got := <-s.got; !proto.Equal(got, q) || r.Mtu != 1450 || len(r.Addresses) != 2 || r.Addresses[1] != s.long {
			t.Errorf("asked %v, answered %d bytes", got, proto.Size(r))
		}
	}
}

// Requests that are larger than frames and windows arrive whole.
func TestLongRequests(t *testing.T) {
	s := &server{}
	_, call := start(t, s)
	for _, n := range []int{0, 400, 16384 - 7, 16384, 65535 - 7, 65536, 3 << 20} {
		q := &cniapi.GCRequest{Network: strings.Repeat("n", n)}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := call(ctx, rpc.CNI_GC_FullMethodName, q, &cniapi.GCResponse{}); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		cancel()
		if got := <-s.got; !proto.Equal(got, q) {
			t.Errorf("%d bytes did not arrive as they were", n)
		}
	}
}

func TestErrorsKeepTheirDetails(t *testing.T) {
	st, err := status.New(codes.AlreadyExists, "wörld: 100% \"taken\"\n").WithDetails(&cniapi.CNIError{Code: 100, Msg: "taken", Details: "call DEL"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []*status.Status{st, status.New(codes.NotFound, "wörld: 100%\n")} {
		s := &server{err: want.Err()}
		_, call := start(t, s)
		err := call(t.Context(), rpc.CNI_Add_FullMethodName, &cniapi.AddRequest{}, &cniapi.AddResponse{})
		if got := status.Convert(err); !proto.Equal(got.Proto(), want.Proto()) {
			t.Errorf("got %v, want %v", got.Proto(), want.Proto())
		}
	}
	_, call := start(t, &server{})
	for method, want := range map[string]codes.Code{"/isthmus.v1.CNI/Status": codes.Unimplemented, "/no.Service/Method": codes.Unimplemented, "nonsense": codes.Unimplemented} {
		if err := call(t.Context(), method, &cniapi.StatusRequest{}, &cniapi.StatusResponse{}); status.Code(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// The server learns of the deadline, and the caller does not outwait it.
func TestDeadline(t *testing.T) {
	told := make(chan time.Duration, 1)
	s := &server{wait: func(ctx context.Context) {
		d, _ := ctx.Deadline()
		told <- time.Until(d)
		<-ctx.Done()
	}}
	_, call := start(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := call(ctx, rpc.CNI_Add_FullMethodName, &cniapi.AddRequest{}, &cniapi.AddResponse{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	if left := <-told; left <= 0 || left > 300*time.Millisecond {
		t.Errorf("the server knew of %v", left)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, call := start(t, &server{wait: func(ctx context.Context) { cancel(); <-ctx.Done() }})
	if err := call(ctx, rpc.CNI_Add_FullMethodName, &cniapi.AddRequest{}, &cniapi.AddResponse{}); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
}

// A server that ends in order answers first; one that breaks off does not.
func TestServerEnds(t *testing.T) {
	var g *grpc.Server
	s := &server{wait: func(context.Context) { go g.GracefulStop(); time.Sleep(100 * time.Millisecond) }}
	g, call := start(t, s)
	if err := call(t.Context(), rpc.CNI_Add_FullMethodName, &cniapi.AddRequest{}, &cniapi.AddResponse{}); err != nil {
		t.Errorf("graceful stop: %v", err)
	}
	s = &server{wait: func(ctx context.Context) { go g.Stop(); <-ctx.Done() }}
	g, call = start(t, s)
	if err := call(t.Context(), rpc.CNI_Add_FullMethodName, &cniapi.AddRequest{}, &cniapi.AddResponse{}); status.Code(err) != codes.Unavailable {
		t.Errorf("stop: %v", err)
	}
}

// Whatever a server sends, a call ends with an error of gRPC.
func FuzzServer(f *testing.F) {
	for _, s := range []string{"", "HTTP/1.1 400 Bad Request\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x07",
		"\x00\x00\x01\x01\x0d\x00\x00\x00\x01\xff", "\x00\x00\x01\x01\x01\x00\x00\x00\x01\x88", "\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88", "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x05\x00\x09\x00\x00\x00\x01abcde", "\xff\xff\xff\x00\x00\x00\x00\x00\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := net.Pipe()
		go func() {
			go func() { // takes what comes
				for buffer := make([]byte, 1024); ; {
					if _, err := far.Read(buffer); err != nil {
						return
					}
				}
			}()
			far.Write(b)
			far.Close()
		}()
		defer near.Close()
		err := unary.Call(t.Context(), near, "/a/B", &cniapi.StatusRequest{}, &cniapi.StatusResponse{})
		var known interface{ GRPCStatus() *status.Status }
		if err != nil && !errors.As(err, &known) {
			t.Errorf("error is %#v", err)
		}
	})
}
