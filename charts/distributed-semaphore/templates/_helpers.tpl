{{- define "distributed-semaphore.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* A semaphore's spec: its own fields over the defaults. Takes the root context and the semaphore's name. */}}
{{- define "distributed-semaphore.spec" -}}
{{- $own := get .root.Values.semaphores .name }}
{{- $spec := mergeOverwrite (deepCopy .root.Values.defaults) (deepCopy $own) }}
{{- if not (hasKey $spec "limit") }}
{{- fail (printf "semaphores.%s.limit: how many slots? (or set defaults.limit)" .name) }}
{{- end }}
{{- toYaml $spec }}
{{- end }}
