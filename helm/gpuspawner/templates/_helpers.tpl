{{/* What the names of all objects begin with: at most 40 characters, so that there is room for what follows. */}}
{{- define "gpuspawner.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $full | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* The name of what does not belong to a namespace: two releases of one name are two. */}}
{{- define "gpuspawner.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "gpuspawner.fullname" .) -}}
{{- end }}

{{- define "gpuspawner.selector" -}}
app.kubernetes.io/name: gpuspawner
app.kubernetes.io/instance: {{ include "gpuspawner.fullname" . }}
{{- end }}

{{- define "gpuspawner.labels" -}}
{{ include "gpuspawner.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The image of a part: dict "root" . "part" "hub". */}}
{{- define "gpuspawner.image" -}}
{{- $image := .root.Values.image -}}
{{- (index .root.Values (eq .part "notebook" | ternary "session" .part)).image | default (printf "%s%s:%s" $image.prefix .part ($image.tag | default .root.Chart.AppVersion)) -}}
{{- end }}

{{- define "gpuspawner.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Of every pod but the agent's. */}}
{{- define "gpuspawner.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "gpuspawner.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "gpuspawner.priority" -}}
{{- if .Values.priorityClasses.create }}
priorityClassName: {{ include "gpuspawner.clusterName" . }}-system
{{- end }}
{{- end }}

{{/* Where a pod runs: the values of its part. */}}
{{- define "gpuspawner.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpuspawner.secretName" -}}
{{- .Values.secrets.existing | default (printf "%s-secrets" (include "gpuspawner.fullname" .)) -}}
{{- end }}

{{/* The Secret and key of the service's token at its hub. */}}
{{- define "gpuspawner.tokenSecret" -}}
{{- .Values.hub.enabled | ternary (include "gpuspawner.secretName" .) .Values.hub.existing.tokenSecret -}}
{{- end }}
{{- define "gpuspawner.tokenKey" -}}
{{- .Values.hub.enabled | ternary "service_token" .Values.hub.existing.tokenKey -}}
{{- end }}

{{- define "gpuspawner.hubUrl" -}}
{{- if .Values.hub.enabled -}}
http://{{ include "gpuspawner.fullname" . }}-hub:8081
{{- else -}}
{{ .Values.hub.existing.url | trimSuffix "/" }}
{{- end -}}
{{- end }}

{{- define "gpuspawner.serviceUrl" -}}
http://{{ include "gpuspawner.fullname" . }}-service:8003{{ .Values.hub.baseUrl }}services/gpuspawner/api/v1
{{- end }}

{{/* The times of idle sessions, as hub and service read them. */}}
{{- define "gpuspawner.idle" -}}
{{- range $name, $value := dict "WARN" .Values.idle.warnSeconds "SHRINK" .Values.idle.shrinkSeconds "CULL" .Values.idle.cullSeconds "CHECK" .Values.idle.checkSeconds }}
{{- if not (kindIs "invalid" $value) }}
- {name: GPUSPAWNER_IDLE_{{ $name }}_SECONDS, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* A volume claim's class: dict "class" "" */}}
{{- define "gpuspawner.storageClass" -}}
{{- if .class }}
storageClassName: {{ eq .class "-" | ternary "" .class | quote }}
{{- end }}
{{- end }}

{{/* What the hub's configuration reads. In a Secret: `hub.config` may hold some. */}}
{{- define "gpuspawner.hubValues" -}}
{{- $name := include "gpuspawner.fullname" . -}}
{{- $session := .Values.session -}}
{{- dict
  "instance" $name
  "namespace" .Release.Namespace
  "base_url" .Values.hub.baseUrl
  "public_url" .Values.hub.publicUrl
  "hub_url" (include "gpuspawner.hubUrl" .)
  "proxy_api_url" (printf "http://%s-proxy-api:8001" $name)
  "database_url" .Values.hub.databaseUrl
  "service" (.Values.service.enabled | ternary (include "gpuspawner.serviceUrl" .) "")
  "admins" .Values.hub.admins
  "config" .Values.hub.config
  "extra_config" .Values.hub.extraConfig
  "image" (include "gpuspawner.image" (dict "root" . "part" "notebook"))
  "pull_policy" .Values.image.pullPolicy
  "pull_secrets" .Values.image.pullSecrets
  "priority_class" (.Values.priorityClasses.create | ternary (printf "%s-session" (include "gpuspawner.clusterName" .)) "")
  "session" (omit $session "image" "defaultUrl")
  "default_url" ($session.defaultUrl | default (or $session.image $session.profiles | empty | ternary "/lab/tree/tour.ipynb" ""))
  | toJson -}}
{{- end }}

{{/* The parts of network policies. */}}
{{- define "gpuspawner.to" -}}
- podSelector:
    matchLabels: {{- include "gpuspawner.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
{{- end }}
{{- define "gpuspawner.sessions" -}}
- podSelector: {matchLabels: {gpuspawner.io/instance: {{ include "gpuspawner.fullname" . }}}}
{{- end }}
{{- define "gpuspawner.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}
{{/* Where the API server is, no label says. */}}
{{- define "gpuspawner.apiServer" -}}
- ports: [{port: 443}, {port: 6443}]
{{- end }}

{{- define "gpuspawner.subject" }}
subjects:
  - {kind: ServiceAccount, name: {{ .name }}, namespace: {{ .root.Release.Namespace }}}
{{- end }}
