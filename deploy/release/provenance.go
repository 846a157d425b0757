// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
)

// statement is an in-toto statement (https://in-toto.io/Statement/v1) about files. The
// types of in-toto are protocol buffers, whose JSON is not the same bytes in every run.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	payloadType   = "application/vnd.in-toto+json"
	buildType     = repository + "/blob/main/docs/releases.md#provenance"
	builderID     = repository + "/tree/main/deploy/release"
)

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// predicate is a SLSA provenance. It has no times of the build, which would differ.
type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]any    `json:"internalParameters"`
		ResolvedDependencies []dependency      `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance records the commit and the tools that the files were made from.
func provenance(s source, version string, files []subject) ([]byte, error) {
	st := statement{Type: statementType, Subject: files, PredicateType: predicateType}
	d := &st.Predicate.BuildDefinition
	d.BuildType = buildType
	d.ExternalParameters = map[string]string{"repository": repository, "version": version}
	d.InternalParameters = map[string]any{"uncommittedChanges": s.dirty != ""}
	d.ResolvedDependencies = []dependency{
		{URI: "git+" + repository + "@" + s.commit, Digest: map[string]string{"gitCommit": s.commit}},
		{URI: "pkg:golang/toolchain@" + s.goVer, Name: "Go"},
	}
	st.Predicate.RunDetails.Builder.ID = builderID
	text, err := json.MarshalIndent(st, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	return append(text, '\n'), nil
}
