{{/* The chart's name, as labels have it. */}}
{{- define "semaphore-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the objects: the release's, with the chart's name where that is not in it. */}}
{{- define "semaphore-operator.fullname" -}}
{{- $name := include "semaphore-operator.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels by which the operator's pods are found; never changed by an upgrade. */}}
{{- define "semaphore-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "semaphore-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "semaphore-operator.labels" -}}
{{ include "semaphore-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "semaphore-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "semaphore-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: which account, as serviceAccount.create is false?" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Secret that holds the address of Redis: one of the user's, or the chart's own. */}}
{{- define "semaphore-operator.redisSecretName" -}}
{{- default (printf "%s-redis" (include "semaphore-operator.fullname" . | trunc 57 | trimSuffix "-")) .Values.redis.existingSecret }}
{{- end }}

{{- define "semaphore-operator.valkeyName" -}}
{{- printf "%s-valkey" (include "semaphore-operator.fullname" . | trunc 56 | trimSuffix "-") }}
{{- end }}

{{/* What a schema cannot say well: a message that names the keys. */}}
{{- define "semaphore-operator.validate" -}}
{{- $ways := compact (list .Values.redis.url .Values.redis.existingSecret (ternary "valkey" "" .Values.valkey.enabled)) }}
{{- if gt (len $ways) 1 }}
{{- fail "redis: set one of redis.url, redis.existingSecret and valkey.enabled" }}
{{- else if not $ways }}
{{- fail "redis: which Redis? Set redis.url (redis://host:6379/0), or redis.existingSecret to the name of a Secret that holds the address; to try things out, valkey.enabled" }}
{{- end }}
{{- end }}

{{- define "semaphore-operator.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}
