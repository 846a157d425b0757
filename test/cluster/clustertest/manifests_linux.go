// SPDX-License-Identifier: Apache-2.0

package clustertest

// IsolatedEnds are the manifests of a client and two servers, for tests of traffic that must not stop. Policy isolates
// both ends and allows port 7001, UDP and TCP. The names place the pods: one server is on the client's node, one on
// the other.
const IsolatedEnds = `
apiVersion: v1
kind: Pod
metadata: {name: client-linux1, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near-linux1, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far-linux2, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: test}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]
`
