// SPDX-License-Identifier: Apache-2.0

// Package convert turns Kubernetes objects into the nouns of package model. Kinds is the table of what is
// read, with one file for each kind; its comment explains how to add one.
//
// It applies the API's defaults and validates as the API server does, with the rules for new or for stored
// objects. Errors name object, field and remedy. An invalid stored policy still yields the part that can be
// enforced safely.
//
// It reads no files, makes no requests, and does not resolve services or domain names.
package convert
