// SPDX-License-Identifier: Apache-2.0

// Package kube converts Kubernetes objects to model.Snapshots. They come from an API server (APIServer) or
// from a watched directory of manifests (Directory); both are a Source. It applies the API's defaults and
// validates as the API server does. Errors name object, field and remedy.
//
// With nodecidr below it, it is the only package that knows Kubernetes types, and none of them leaves it.
//
// A Reporter writes back what nodes do not enforce exactly, and an Announcer a node's fabric annotations;
// nothing else is written.
//
// It does not decide what a policy means or what is reported, and does not resolve services or domain
// names.
package kube
