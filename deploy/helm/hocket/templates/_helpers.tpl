{{- define "hocket.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "hocket.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hocket.labels" -}}
{{ include "hocket.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "hocket.image" -}}
{{- $repository := required "image.repository: the image built from deploy/containers" .Values.image.repository -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* HOST:PORT of all gateways: nodes dial each address that the name has. */ -}}
{{- define "hocket.gateways" -}}
{{ include "hocket.name" . }}-gateways:7000
{{- end }}

{{- /* Certificates of one role: dict "root" . "role" "node". */ -}}
{{- define "hocket.certificates" -}}
- name: cluster
  secret:
    secretName: {{ .root.Values.clusterSecret }}
    defaultMode: 0440
    items:
      - {key: ca.pem, path: ca.pem}
      - {key: {{ .role }}.pem, path: {{ .role }}.pem}
{{- end }}
