{{/* The labels of everything. */}}
{{- define "isthmus.labels" -}}
app.kubernetes.io/name: isthmus
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The labels by which a DaemonSet knows its pods: (dict "root" $ "os" os). */}}
{{- define "isthmus.selector" -}}
app.kubernetes.io/name: isthmus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ if .root.Values.uninstall }}uninstall{{ else }}agent{{ end }}-{{ .os }}
{{- end }}

{{/* What DaemonSets of both systems have in their pods. */}}
{{- define "isthmus.pod" -}}
serviceAccountName: isthmus-agent
automountServiceAccountToken: false # one that expires is mounted below
hostNetwork: true
dnsPolicy: Default
priorityClassName: system-node-critical
# After SIGTERM the agent answers who still waits. What is in force stays.
terminationGracePeriodSeconds: 15
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
nodeSelector:
  {{- include "isthmus.nodes" . | nindent 2 }}
{{- with .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The labels of nodes: (dict "os" os "own" values "name" the name of these values). */}}
{{- define "isthmus.nodes" -}}
{{- $os := get .own.nodeSelector "kubernetes.io/os" | default .os }}
{{- if ne $os .os }}
{{- fail (printf "%s.nodeSelector: kubernetes.io/os: %s: these pods run on %s nodes: remove it" .name $os .os) }}
{{- end -}}
kubernetes.io/os: {{ .os }}
{{- with omit .own.nodeSelector "kubernetes.io/os" }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* YAML 1.1 reads "on" and "off" without quotes as true and false. */}}
{{- define "isthmus.switch" -}}
{{ get (dict "true" "on" "false" "off") (toString .) | default . }}
{{- end }}

{{/* The token for the API server. The one that is mounted by default is valid for a year. */}}
{{- define "isthmus.token.volume" -}}
- name: api-access
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}
{{- define "isthmus.token.mount" -}}
- {name: api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* Flags of the export of flows. */}}
{{- define "isthmus.relay.export" -}}
{{- if .file }}
- --export-file={{ if eq .file "-" }}-{{ else }}/var/log/isthmus/{{ .file }}{{ end }}
{{- if ne .file "-" }}
- --export-file-max-mb={{ int .maxMegabytes }}
- --export-file-keep={{ int .keep }}
{{- end }}
{{- end }}
{{- with .otlp }}
{{- if .endpoint }}
- {{ printf "--otlp-endpoint=%s" .endpoint | quote }}
- --otlp-queue={{ int .queue }}
{{- if .caSecret }}
- --otlp-ca=/etc/isthmus-otlp/ca/ca.crt
{{- end }}
{{- if .certSecret }}
- --otlp-cert=/etc/isthmus-otlp/cert/tls.crt
- --otlp-key=/etc/isthmus-otlp/cert/tls.key
{{- end }}
{{- if .headersSecret }}
- --otlp-headers-file=/etc/isthmus-otlp/headers/headers
{{- end }}
{{- with .cluster }}
- {{ printf "--otlp-cluster=%s" . | quote }}
{{- end }}
{{- else if or .caSecret .certSecret .headersSecret .cluster }}
{{- fail "relay.export.otlp: there is no collector: set relay.export.otlp.endpoint" }}
{{- end }}
{{- end }}
{{- if or .file .otlp.endpoint }}
- --export-aggregate={{ .aggregate }}
{{- range .allow }}
- {{ printf "--export-allow=%s" (toJson .) | quote }}
{{- end }}
{{- range .deny }}
- {{ printf "--export-deny=%s" (toJson .) | quote }}
{{- end }}
{{- else if or .allow .deny }}
{{- fail "relay.export.allow, relay.export.deny: nothing is exported: set relay.export.file or relay.export.otlp.endpoint" }}
{{- end }}
{{- end }}

{{/* Secrets for the collector, by the names of their volumes. */}}
{{- define "isthmus.relay.secrets" -}}
{{- if .endpoint }}
{{- with .caSecret }}
ca: {{ quote . }}
{{- end }}
{{- with .certSecret }}
cert: {{ quote . }}
{{- end }}
{{- with .headersSecret }}
headers: {{ quote . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The certificate with which agents serve flows. */}}
{{- define "isthmus.hubble.volume" -}}
{{- if .Values.relay.enabled }}
- {name: hubble, secret: {secretName: {{ quote .Values.relay.agentSecret }}, defaultMode: 0400}}
{{- end }}
{{- end }}
{{- define "isthmus.hubble.mount" -}}
{{- if .Values.relay.enabled }}
- {name: hubble, mountPath: /etc/isthmus-hubble, readOnly: true}
{{- end }}
{{- end }}

{{/* Whether agents write annotations of their Nodes. */}}
{{- define "isthmus.announces" -}}
{{- if or (eq .Values.agent.announce "always") (and (eq .Values.agent.announce "auto") (or .Values.windows.enabled .Values.fabric.hybridOverlay)) }}yes{{ end }}
{{- end }}

{{/* A digest of the image for Linux alone would leave Windows nodes at a tag that can change. */}}
{{- define "isthmus.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}
{{- define "isthmus.image.windows" -}}
{{- if and .Values.image.digest (not .Values.image.windowsDigest) }}
{{- fail "image.digest without image.windowsDigest: set both (the digest of the index of a release names the images of both systems), or windows.enabled=false" }}
{{- end -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}-windows{{ with .Values.image.windowsDigest }}@{{ . }}{{ end }}
{{- end }}

{{/* Resources of one system: (dict "root" $ "own" values). */}}
{{- define "isthmus.resources" -}}
{{ toYaml (.own.resources | default .root.Values.agent.resources) }}
{{- end }}

{{/* Flags that the administrator adds: those of one system last. */}}
{{- define "isthmus.extraArgs" -}}
{{- range concat .root.Values.agent.extraArgs .own.extraArgs }}
- {{ quote . }}
{{- end }}
{{- end }}

{{/* Settings of one system that go into the ConfigMap: (dict "root" $ "own" values). Empty if there are none. */}}
{{- define "isthmus.config" -}}
{{- with mergeOverwrite (deepCopy .root.Values.agent.config) .own.config }}
{{- toYaml . }}
{{- end }}
{{- end }}
{{- define "isthmus.config.volume" -}}
{{- if and (not .root.Values.uninstall) (include "isthmus.config" .) }}
- {name: config, configMap: {name: isthmus-agent-{{ .os }}}}
{{- end }}
{{- end }}
{{- define "isthmus.config.mount" -}}
{{- if include "isthmus.config" . }}
- {name: config, mountPath: /etc/isthmus-config, readOnly: true}
{{- end }}
{{- end }}

{{/* Flags of both systems. files is the directory of mounts on Windows. */}}
{{- define "isthmus.args" -}}
- --node-name=$(NODE_NAME)
- --log-level={{ .Values.agent.logLevel }}
- --log-format={{ .Values.agent.logFormat }}
{{- if include "isthmus.config" (dict "root" . "own" .own) }}
- --config={{ .files | default "" }}/etc/isthmus-config/agent.yaml
{{- end }}
- --http-address={{ include "isthmus.http.agent" . }}
{{- with .Values.agent.ruleMetrics }}
- --rule-metrics={{ int . }}
{{- end }}
{{- if eq .Values.mode "full" }}
- --quarantine={{ .Values.agent.quarantine }}
{{- range .Values.agent.reservedHostPorts }}
- --reserved-host-ports={{ . }}
{{- end }}
{{- end }}
{{- if .Values.relay.enabled }}
- --hubble-listen=:{{ int .Values.relay.agentPort }}
- --hubble-cert={{ .files | default "" }}/etc/isthmus-hubble/tls.crt
- --hubble-key={{ .files | default "" }}/etc/isthmus-hubble/tls.key
- --hubble-ca={{ .files | default "" }}/etc/isthmus-hubble/ca.crt
{{- end }}
{{- end }}

{{/* Keeps a drain of nodes from evicting all pods of a component at once: root, component and replicas. */}}
{{- define "isthmus.disruption" -}}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: isthmus-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "isthmus.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: isthmus
      app.kubernetes.io/instance: {{ .root.Release.Name }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- end }}

{{/* Flags of modes policy and observe. Values of the pod network do not fit it: agents refuse their flags. */}}
{{- define "isthmus.policy" -}}
{{- if .Values.controller.enabled }}
{{- fail (printf "controller.enabled: with mode %s the other network gives nodes their pod ranges: set controller.enabled=false" .Values.mode) }}
{{- end }}
{{- if or .Values.agent.mtu .Values.agent.uplink .Values.agent.reservedHostPorts .Values.fabric.masqueradeExceptions .Values.fabric.hybridOverlay }}
{{- fail (printf "agent.mtu, agent.uplink, agent.reservedHostPorts, fabric.masqueradeExceptions and fabric.hybridOverlay have no meaning with mode %s, where the other network makes the interfaces: remove them" .Values.mode) }}
{{- end }}
{{- $fabric := .Values.fabric }}
{{- if or (ne $fabric.mode "auto") (ne $fabric.forwarding "direct") (ne (int $fabric.vni) 4096) (ne (int $fabric.vxlanPort) 4789) (not $fabric.masquerade) }}
{{- fail (printf "fabric.mode, fabric.forwarding, fabric.vni, fabric.vxlanPort and fabric.masquerade have no meaning with mode %s, where packets take the way of the other network: remove them" .Values.mode) }}
{{- end }}
- --mode={{ .Values.mode }}
{{- end }}

{{/* Flags of the hybrid overlay of OVN-Kubernetes. */}}
{{- define "isthmus.hybrid" -}}
{{- if and .Values.fabric.hybridOverlay (ne (int .Values.fabric.vni) 4097) }}
{{- fail (printf "fabric.hybridOverlay with fabric.vni %d: OVN-Kubernetes uses 4097: set fabric.vni=4097" (int .Values.fabric.vni)) }}
{{- end }}
{{- if and .Values.fabric.hybridOverlay (not (has .Values.fabric.mode (list "auto" "vxlan"))) }}
{{- fail (printf "fabric.hybridOverlay with fabric.mode %s: it needs tunnels: set fabric.mode to auto or vxlan" .Values.fabric.mode) }}
{{- end }}
{{- range .Values.fabric.hybridOverlay }}
- --hybrid-overlay={{ . }}
{{- end }}
{{- end }}

{{- define "isthmus.env" -}}
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- with .Values.apiServer.host }}
  {{- if not (regexMatch "^([A-Za-z0-9_.-]+|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)$" .) }}
  {{- fail (printf "apiServer.host %s: give the name or the address alone, and the port as apiServer.port" .) }}
  {{- end }}
  - {name: KUBERNETES_SERVICE_HOST, value: {{ quote . }}}
  - {name: KUBERNETES_SERVICE_PORT, value: {{ quote $.Values.apiServer.port }}}
  {{- end }}
{{- end }}

{{- define "isthmus.probes" -}}
{{- $address := include "isthmus.http.agent" . -}}
{{- $port := splitList ":" $address | last | int -}}
{{- $host := regexReplaceAll ":[0-9]+$" $address "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if or (eq $host "0.0.0.0") (eq $host "::") (eq $host "") }}{{ $host = "127.0.0.1" }}{{ end -}}
ports:
  - {name: metrics, containerPort: {{ $port }}, hostPort: {{ $port }}, protocol: TCP}
# A State is in force.
readinessProbe:
  httpGet: {host: {{ quote $host }}, path: /readyz, port: {{ $port }}}
  periodSeconds: 5
# The loop is alive. It is not restarted for trouble that a restart would not end.
livenessProbe:
  httpGet: {host: {{ quote $host }}, path: /healthz, port: {{ $port }}}
  initialDelaySeconds: 30
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{/* Annotations of pods: (dict "root" $ "own" values "address" value "name" its name). */}}
{{- define "isthmus.annotations" -}}
{{- $scraped := and .root.Values.prometheus.annotations (not .root.Values.uninstall) }}
{{- $config := "" }}
{{- if and .os (not .root.Values.uninstall) }}{{ $config = include "isthmus.config" . }}{{ end }}
{{- if or $scraped .own.podAnnotations $config -}}
annotations:
  {{- with $config }}
  isthmus.dev/config: {{ sha256sum . }} # agents read their settings at the start
  {{- end }}
  {{- if $scraped }}
  {{- include "isthmus.reachable" . }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ splitList ":" .address | last | quote }}
  prometheus.io/path: /metrics
  {{- end }}
  {{- with .own.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Not empty if Prometheus reads metrics. */}}
{{- define "isthmus.scraped" -}}
{{- if or .Values.prometheus.annotations .Values.prometheus.podMonitor.enabled }}true{{ end }}
{{- end }}

{{/* The addresses on which agents and the controller serve metrics. */}}
{{- define "isthmus.http.agent" -}}
{{ .Values.agent.httpAddress | default (print (include "isthmus.scraped" . | empty | ternary "127.0.0.1" "") ":9470") }}
{{- end }}
{{- define "isthmus.http.controller" -}}
{{ .Values.controller.httpAddress | default (print (include "isthmus.scraped" . | empty | ternary "127.0.0.1" "") ":9471") }}
{{- end }}

{{/* Prometheus uses the address of the pod, where a loopback address does not listen. */}}
{{- define "isthmus.reachable" -}}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" .address }}
{{- fail (printf "%s %s: Prometheus reads metrics at the address of the node, and this is a loopback address: leave %s empty, or set it to \":%s\", or turn prometheus.annotations and prometheus.podMonitor.enabled off" .name .address .name (splitList ":" .address | last)) }}
{{- end }}
{{- end }}
