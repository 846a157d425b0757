// SPDX-License-Identifier: Apache-2.0

// Package kube turns Kubernetes objects into model.Snapshots. They come from
// an API server (APIServer) or from a watched directory of manifests
// (Directory); both are a Source. It applies the API's defaults, checks what
// the API server checks, and names object, field and remedy where it refuses.
//
// With nodecidr below it, it is the only package that knows Kubernetes types, and
// none of them leaves it.
//
// A Reporter writes back what nodes do not enforce exactly; nothing else is
// written from here.
//
// It does not decide what a policy means or what is reported, and does not
// resolve services or domain names.
package kube
