// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/np-guard/netpol-analyzer/pkg/manifests/parser"
	"github.com/np-guard/netpol-analyzer/pkg/netpol/eval"
)

// request is one line of input. Queries name pods as "namespace/name", and other ends by their
// address.
type request struct {
	Namespaces       []*corev1.Namespace
	Pods             []*corev1.Pod
	NetworkPolicies  []*networkingv1.NetworkPolicy
	AdminPolicies    []*v1alpha1.AdminNetworkPolicy
	BaselinePolicies []*v1alpha1.BaselineAdminNetworkPolicy
	Queries          []query
}

type query struct {
	Src, Dst, Protocol string
	Port               int
}

// response is one line of output. Answers has a letter for each query: a for allowed, d for denied,
// e for an error of the analyzer.
type response struct {
	Answers string
	// Error is the first error. Without Answers it concerns the whole case.
	Error string
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "analyzer:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	requests, w := json.NewDecoder(in), bufio.NewWriter(out)
	responses := json.NewEncoder(w)
	for {
		var r request
		if err := requests.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a case: %w", err)
		}
		if err := responses.Encode(r.answer()); err != nil {
			return fmt.Errorf("write answers: %w", err)
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write answers: %w", err)
		}
	}
}

func (r *request) answer() response {
	e, err := eval.NewPolicyEngineWithOptionsList(eval.WithLogger(silent{}), eval.WithObjectsList(r.objects()))
	if err != nil {
		return response{Error: err.Error()}
	}
	var all response
	letters := make([]byte, len(r.Queries))
	for i, q := range r.Queries {
		allowed, err := e.CheckIfAllowed(q.Src, q.Dst, q.Protocol, strconv.Itoa(q.Port))
		switch {
		case err != nil:
			letters[i] = 'e'
			if all.Error == "" {
				all.Error = err.Error()
			}
		case allowed:
			letters[i] = 'a'
		default:
			letters[i] = 'd'
		}
	}
	all.Answers = string(letters)
	return all
}

func (r *request) objects() []parser.K8sObject {
	var all []parser.K8sObject
	for _, o := range r.Namespaces {
		all = append(all, parser.K8sObject{Kind: parser.Namespace, Namespace: o})
	}
	for _, o := range r.Pods {
		all = append(all, parser.K8sObject{Kind: parser.Pod, Pod: o})
	}
	for _, o := range r.NetworkPolicies {
		all = append(all, parser.K8sObject{Kind: parser.NetworkPolicy, NetworkPolicy: o})
	}
	for _, o := range r.AdminPolicies {
		all = append(all, parser.K8sObject{Kind: parser.AdminNetworkPolicy, AdminNetworkPolicy: o})
	}
	for _, o := range r.BaselinePolicies {
		all = append(all, parser.K8sObject{Kind: parser.BaselineAdminNetworkPolicy, BaselineAdminNetworkPolicy: o})
	}
	return all
}

// silent drops the analyzer's warnings about what it ignores.
type silent struct{}

func (silent) Debugf(string, ...any)        {}
func (silent) Infof(string, ...any)         {}
func (silent) Warnf(string, ...any)         {}
func (silent) Errorf(error, string, ...any) {}
