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
  kubernetes.io/os: {{ .os }}
  {{- with .own.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
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

{{/* Whether agents write annotations of their Nodes. */}}
{{- define "isthmus.announces" -}}
{{- if or (eq .Values.agent.announce "always") (and (eq .Values.agent.announce "auto") .Values.windows.enabled) }}yes{{ end }}
{{- end }}

{{- define "isthmus.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Flags of both systems. */}}
{{- define "isthmus.args" -}}
- --node-name=$(NODE_NAME)
- --log-level={{ .Values.agent.logLevel }}
- --log-format={{ .Values.agent.logFormat }}
- --http-address={{ .Values.agent.httpAddress }}
- --quarantine={{ .Values.agent.quarantine }}
{{- range .Values.agent.reservedHostPorts }}
- --reserved-host-ports={{ . }}
{{- end }}
{{- end }}

{{- define "isthmus.env" -}}
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- with .Values.apiServer.host }}
  - {name: KUBERNETES_SERVICE_HOST, value: {{ quote . }}}
  - {name: KUBERNETES_SERVICE_PORT, value: {{ quote $.Values.apiServer.port }}}
  {{- end }}
{{- end }}

{{- define "isthmus.probes" -}}
{{- $port := splitList ":" .Values.agent.httpAddress | last | int -}}
{{- $host := regexReplaceAll ":[0-9]+$" .Values.agent.httpAddress "" | trimPrefix "[" | trimSuffix "]" -}}
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

{{- define "isthmus.annotations" -}}
{{- if and .Values.prometheus.annotations (not .Values.uninstall) -}}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ splitList ":" .Values.agent.httpAddress | last | quote }}
  prometheus.io/path: /metrics
{{- end }}
{{- end }}
