// SPDX-License-Identifier: Apache-2.0

package podexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// maxOutput bounds the output of a command, in bytes.
const maxOutput = 8 << 20

// In names a container.
type In struct{ Namespace, Pod, Container string }

// Executor runs commands. It is safe for concurrent use.
type Executor struct {
	config *rest.Config
	client rest.Interface
	codec  runtime.ParameterCodec
}

// New returns an Executor for an API server. client is one for version v1 of the core objects.
func New(config *rest.Config, client rest.Interface, codec runtime.ParameterCodec) *Executor {
	return &Executor{config, client, codec}
}

// Run runs a command and returns what it printed on stdout, and its exit status. The error says why it did not run, or what
// it printed on stderr if stdout is empty.
func (e *Executor) Run(ctx context.Context, a In, command []string) (output []byte, status int, err error) {
	url := e.client.Post().Resource("pods").Namespace(a.Namespace).Name(a.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: a.Container, Command: command, Stdout: true, Stderr: true}, e.codec).URL()
	sockets, err := remotecommand.NewWebSocketExecutor(e.config, "GET", url.String())
	if err != nil {
		return nil, 0, fmt.Errorf("exec in pod %s/%s: %w", a.Namespace, a.Pod, err)
	}
	older, err := remotecommand.NewSPDYExecutor(e.config, "POST", url)
	if err != nil {
		return nil, 0, fmt.Errorf("exec in pod %s/%s: %w", a.Namespace, a.Pod, err)
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, older, httpstream.IsUpgradeFailure)
	if err != nil {
		return nil, 0, fmt.Errorf("exec in pod %s/%s: %w", a.Namespace, a.Pod, err)
	}
	ctx = klog.NewContext(ctx, logr.Discard()) // the library logs what it also returns
	stdout, stderr := &bounded{left: maxOutput}, &bounded{left: 4096}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
	var code exec.CodeExitError
	said := strings.TrimSpace(stderr.kept.String())
	switch {
	case errors.As(err, &code):
		return stdout.kept.Bytes(), code.Code, cut(said, stdout)
	case ctx.Err() != nil:
		return nil, 0, fmt.Errorf("exec in pod %s/%s: no answer in time: raise --timeout, or check the kubelet of the node", a.Namespace, a.Pod)
	case err != nil:
		return nil, 0, fmt.Errorf("exec in pod %s/%s: %w: the user needs the right to create pods/exec there", a.Namespace, a.Pod, err)
	}
	return stdout.kept.Bytes(), 0, cut("", stdout)
}

// cut returns an error if a command printed too much, or nothing but an error.
func cut(said string, stdout *bounded) error {
	switch {
	case stdout.cut:
		return fmt.Errorf("the answer is larger than %d bytes", maxOutput)
	case said != "" && stdout.kept.Len() == 0:
		return errors.New(strings.TrimPrefix(said, "isthmusctl: "))
	}
	return nil
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	kept bytes.Buffer
	left int
	cut  bool
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.cut = b.cut || n < len(p)
	b.left -= n
	b.kept.Write(p[:n])
	return len(p), nil
}
