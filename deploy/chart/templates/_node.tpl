{{/* What all nodes have alike: who they are, what they may, and their certificates. */}}
{{- define "penstock.environment" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: PENSTOCK_ETCD_URLS, value: {{ .Values.etcdUrls | quote }}}
{{- end -}}

{{- define "penstock.arguments" -}}
{{- if .Values.pdAddress }}
- --pd-address={{ .Values.pdAddress }}
{{- end }}
{{- include "penstock.tls" (dict "secret" .Values.tls.secret "section" "") }}
{{- end -}}

{{- define "penstock.tls" -}}
{{- if .secret }}
- --{{ .section }}ssl-ca=/tls/ca.crt
- --{{ .section }}ssl-cert=/tls/tls.crt
- --{{ .section }}ssl-key=/tls/tls.key
{{- end }}
{{- end -}}

{{/* Asks a page of a node; a Pod has no certificate to show, so with cert-allowed-cn only the port is tried. */}}
{{- define "penstock.probe" -}}
{{- if contains "cert-allowed-cn" (join " " .arguments) -}}
tcpSocket: {port: status}
{{- else -}}
httpGet: {path: {{ .path }}, port: status{{ if .tls }}, scheme: HTTPS{{ end }}}
{{- end }}
timeoutSeconds: 5
{{- end -}}

{{- define "penstock.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
{{- if .Values.tls.secret }}
  - {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "penstock.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
automountServiceAccountToken: false
volumes:
  - {name: tmp, emptyDir: {}}
{{- if .Values.tls.secret }}
  - {name: tls, secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}}
{{- end }}
{{- end -}}

{{- define "penstock.claim" -}}
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
{{- if .storageClass }}
  storageClassName: {{ .storageClass }}
{{- end }}
  resources: {requests: {storage: {{ .storage }}}}
{{- end -}}
