{{- define "cinquefoil.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name }}{{ end }}
{{- end }}

{{/* Not empty: objects of the Prometheus operator are wanted: {root, enabled (true, false, "auto": where the cluster knows them)}. */}}
{{- define "cinquefoil.wanted" -}}
{{- if eq (toString .enabled) "auto" }}
  {{- if .root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1" }}yes{{ end }}
{{- else if .enabled }}yes{{ end }}
{{- end }}

{{/* Labels that select the pods of one component: {root, component}. */}}
{{- define "cinquefoil.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "cinquefoil.labels" -}}
{{ include "cinquefoil.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ .root.Chart.Name }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* Name and labels of an object: {root, component, name (default: the component's), scraped (by Prometheus)}. */}}
{{- define "cinquefoil.metadata" -}}
name: {{ printf "%s-%s" (include "cinquefoil.fullname" .root) (.name | default .component) }}
labels:
  {{- include "cinquefoil.labels" . | nindent 2 }}
  {{- if .scraped }}
  cinquefoil.io/scraped: "true"
  {{- end }}
{{- end }}

{{/* An agent's host name; its pod's own /etc/hosts has it, too: workers bind it. {root, node}. */}}
{{- define "cinquefoil.agentHost" -}}
{{- $full := include "cinquefoil.fullname" .root -}}
{{ printf "%s-agent-%s-0.%s-agent.%s.svc.%s" $full .node $full .root.Release.Namespace .root.Values.clusterDomain }}
{{- end }}

{{/* Not empty: clients may show tokens. */}}
{{- define "cinquefoil.tokens" -}}
{{- if dig "access" "tokens" "" .Values.config }}yes{{ end }}
{{- end }}

{{/* Not empty: Envoy stands before the port of tokens. */}}
{{- define "cinquefoil.front" -}}
{{- if and .Values.front.enabled (include "cinquefoil.tokens" .) }}yes{{ end }}
{{- end }}

{{/* Not empty: a model has servers of its own, whose gateway calls the router's picker. */}}
{{- define "cinquefoil.picker" -}}
{{- range .Values.config.models }}{{ if .servers }}yes{{ end }}{{ end }}
{{- end }}

{{/* What the router reads of the API server, as JSON: {namespace: {resource: group}}. */}}
{{- define "cinquefoil.discovered" -}}
{{- $found := dict -}}
{{- range .Values.config.models }}
  {{- range .servers }}
    {{- if or .inference_pool .selector .service }}
      {{- $namespace := .namespace | default $.Release.Namespace }}
      {{- $read := get $found $namespace | default dict }}
      {{- if .service }}{{ $_ := set $read "endpointslices" "discovery.k8s.io" }}{{ else }}{{ $_ := set $read "pods" "" }}{{ end }}
      {{- if .inference_pool }}{{ $_ := set $read "inferencepools" "inference.networking.k8s.io" }}{{ end }}
      {{- $_ := set $found $namespace $read }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* What the planner sets the number of, as JSON: {namespace: {resource: {group, names}}}. */}}
{{- define "cinquefoil.scaled" -}}
{{- $found := dict -}}
{{- $kinds := dict "Deployment" (list "apps" "deployments/scale") "StatefulSet" (list "apps" "statefulsets/scale") "LeaderWorkerSet" (list "leaderworkerset.x-k8s.io" "leaderworkersets/scale") "InferenceService" (list "serving.kserve.io" "inferenceservices") -}}
{{- range .Values.config.models }}
  {{- range .servers }}
    {{- with .scale }}
      {{- $namespace := .namespace | default $.Release.Namespace }}
      {{- $kind := get $kinds (.kind | default "Deployment") }}
      {{- $set := get $found $namespace | default dict }}
      {{- $known := get $set (index $kind 1) | default (dict "group" (index $kind 0) "names" list) }}
      {{- $_ := set $set (index $kind 1) (dict "group" (index $kind 0) "names" (append $known.names .name)) }}
      {{- $_ := set $found $namespace $set }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* Not empty: the planner has rights at the API server. */}}
{{- define "cinquefoil.plannerRights" -}}
{{- if or .Values.planner.kubernetes.models .Values.planner.kubernetes.parkedNodes (include "cinquefoil.scaled" . | fromJson) }}yes{{ end }}
{{- end }}

{{/* cinquefoil.yaml: values.config, and what only the chart can know. */}}
{{- define "cinquefoil.config" -}}
{{- $full := include "cinquefoil.fullname" . -}}
{{- $state := "/var/lib/cinquefoil/state" -}}
{{- $set := dict "version" "v1" -}}
{{- range $service, $port := dict "carbon" 8461 "planner" 8462 "router" 8464 "predictor" 8465 "batch" 8468 }}
  {{- if or (not (has $service (list "predictor" "batch"))) (hasKey $.Values.config $service) }}
    {{- $_ := set $set $service (dict
      "listen" (printf "0.0.0.0:%d" (int $port))
      "address" (printf "%s-%s:%d" $full $service (int $port))
      "health" "0.0.0.0:8471"
      "metrics" (printf "0.0.0.0:%d" (add $port 1000))) }}
  {{- end }}
{{- end }}
{{- $_ := set $set.planner "database" (printf "%s/planner.sqlite3" $state) -}}
{{- if gt (int .Values.planner.replicas) 1 }}
  {{- if not .Values.planner.database.existingSecret }}
    {{- fail "planner.replicas: planners that stand by need a database on another machine: give planner.database.existingSecret" }}
  {{- end }}
  {{- $addresses := list }}
  {{- range $at := until (int .Values.planner.replicas) }}
    {{- $addresses = append $addresses (printf "%s-planner-%d.%s-planner.%s.svc.%s:8462" $full $at $full $.Release.Namespace $.Values.clusterDomain) }}
  {{- end }}
  {{- $_ := set $set.planner "address" $addresses }}
  {{- $_ := set $set.planner "standby" true }}
{{- end }}
{{- with .Values.planner.kubernetes }}
  {{- if or .models .parkedNodes }}
    {{- $_ := set $set.planner "kubernetes" (dict "models_map" (ternary (printf "%s-models" $full) "" .models) "parked_nodes" .parkedNodes) }}
  {{- end }}
  {{- if .models }}{{ $_ := set $set "models_file" "models.yaml" }}
  {{- else if not $.Values.config.models }}{{ fail "config.models: required, or planner.kubernetes.models for models as objects" }}{{ end }}
{{- end }}
{{- $_ := set $set.router "http_listen" "0.0.0.0:8466" -}}
{{- if include "cinquefoil.tokens" . }}{{ $_ := set $set.router "token_listen" "0.0.0.0:8474" }}{{ end -}}
{{- if include "cinquefoil.picker" . }}{{ $_ := set $set.router "picker_listen" "0.0.0.0:8475" }}{{ end -}}
{{- $_ := set $set.router "routing_file" (printf "%s/routes.json" $state) -}}
{{- with $set.batch }}
  {{- $_ := set . "http_listen" "0.0.0.0:8469" }}
  {{- $_ := set . "http_address" (printf "%s-batch:8469" $full) }}
  {{- $_ := set . "router_url" (printf "%s://%s-router:8466" (ternary "https" "http" $.Values.tls.enabled) $full) }}
  {{- if not $.Values.batch.database.existingSecret }}{{ $_ := set . "database" (printf "%s/batch.sqlite3" $state) }}{{ end }}
  {{- if not (dig "batch" "files" "" $.Values.config) }}{{ $_ := set . "files" (printf "%s/files" $state) }}{{ end }}
{{- end -}}
{{- with $set.predictor }}{{ $_ := set . "cache" (dict "file" (printf "%s/predictor.sqlite3" $state)) }}{{ end -}}
{{- $nodes := dict -}}
{{- range $node, $_ := .Values.config.nodes }}
  {{- $host := include "cinquefoil.agentHost" (dict "root" $ "node" $node) }}
  {{- $_ := set $nodes $node (dict "listen" "0.0.0.0:8463" "address" (printf "%s:8463" $host)
    "health" "0.0.0.0:8471" "metrics" "0.0.0.0:9463" "worker_host" $host "state_dir" $state) }}
{{- end }}
{{- $_ := set $set "nodes" $nodes -}}
{{- $join := hasKey .Values.config "join" -}}
{{- if $join }}
  {{- $_ := set $set "join" (dict "listen" "0.0.0.0:8463" "health" "0.0.0.0:8471" "metrics" "0.0.0.0:9463" "state_dir" $state) }}
  {{- if and .Values.tls.enabled (not (dig "identities" "" (.Values.config.join | default dict))) }}
    {{- $_ := set $set.join "identities" (list (printf "spiffe://%s/agent/joined" (dig "access" "trust_domain" "cinquefoil" .Values.config))) }}
  {{- end }}
{{- end }}
{{- $_ := set $set "model_cache" (dict "folder" "/var/lib/cinquefoil/models/cache") -}}
{{- if hasKey .Values.config "console" }}
  {{- $tokens := ternary "/var/lib/cinquefoil/tokens/tokens" (printf "%s/console-tokens" $state) (ne .Values.console.existingSecret "") }}
  {{- $_ := set $set "console" (dict "listen" "0.0.0.0:8467" "token_file" $tokens) }}
{{- else }}
  {{- $_ := set $set "console" (dict "listen" "") }}
{{- end }}
{{- if .Values.tls.enabled }}
  {{- $folder := "/var/lib/cinquefoil/pki/{service}/{node}" }}
  {{- $_ := set $set "tls" (dict "certificate_file" (printf "%s/tls.crt" $folder)
    "key_file" (printf "%s/tls.key" $folder) "ca_file" (printf "%s/ca.crt" $folder)) }}
  {{- if $join }}{{ $_ := set $set.tls "ip_server_name" (printf "%s-agent" $full) }}{{ end }}
  {{- if not .Values.config.access }}{{ $_ := set $set "access" (dict "trust_domain" "cinquefoil") }}{{ end }}
{{- else if not (dig "access" "insecure" false .Values.config) }}
  {{- fail "tls.enabled: false lets every pod that reaches a service do everything: say so in config: {access: {insecure: true}}, or leave tls.enabled true" }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $set) }}
{{- end }}

{{/* Settings whose change restarts a component's pods; all others are read while it runs: {root, component, node}. */}}
{{- define "cinquefoil.restarting" -}}
{{- $config := include "cinquefoil.config" .root | fromYaml -}}
{{- $nodes := $config.nodes | default dict -}}
{{- $found := omit $config "models" "nodes" "join" "log_level" -}}
{{- $read := dict "planner" (list "carbon.replay") "batch" (list "router.http_listen" "router.max_request_bytes") -}}
{{- range $service := list "carbon" "planner" "router" "predictor" "batch" "console" }}
  {{- if and (hasKey $found $service) (ne $service $.component) }}
    {{- $section := get $found $service }}
    {{- $kept := pick $section "listen" "address" }}
    {{- range $path := get $read $.component | default list }}
      {{- $key := trimPrefix (printf "%s." $service) $path }}
      {{- if and (ne $key $path) (hasKey $section $key) }}{{ $_ := set $kept $key (get $section $key) }}{{ end }}
    {{- end }}
    {{- $_ := set $found $service $kept }}
  {{- end }}
{{- end }}
{{- if eq .component "planner" }}
  {{- $_ := set $found "planner" (omit $config.planner "objective" "strategy") }}
  {{- $zones := concat (values (dig "zone_of_topology" dict ($config.join | default dict))) (list (dig "zone" "" ($config.join | default dict))) }}
  {{- range $nodes }}{{ $zones = append $zones .zone }}{{ end }}
  {{- $_ := set $found "zones" ($zones | uniq | sortAlpha) }}
{{- else if eq .component "predictor" }}
  {{- range $name, $model := $config.models }}
    {{- range $variant, $of := $model.variants }}{{ $_ := set $found (printf "models.%s.%s" $name $variant) ($of.runtime | default dict) }}{{ end }}
  {{- end }}
{{- else if eq .component "agent" }}
  {{- $_ := set $found "place" (ternary $config.join (get $nodes .node) (eq .node "joined")) }}
  {{- if .root.Values.models.fetch }}
    {{- range $name, $model := $config.models }}
      {{- range $variant, $of := $model.variants }}{{ $_ := set $found (printf "models.%s.%s" $name $variant) (pick $of "uri" "sha256") }}{{ end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* What every pod has: {root, component}. */}}
{{- define "cinquefoil.podMetadata" -}}
labels:
  {{- include "cinquefoil.labels" . | nindent 2 }}
  {{- with .node }}
  cinquefoil.io/node: {{ . }}
  {{- end }}
annotations:
  checksum/config: {{ include "cinquefoil.restarting" . | sha256sum }}
  {{- with (get .root.Values .component | default dict).podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* What every pod but that of an agent with rights has; "restricted" as of Pod Security Standards. */}}
{{- define "cinquefoil.pod" -}}
serviceAccountName: {{ .account | default .root.Values.serviceAccount.name | default (include "cinquefoil.fullname" .root) }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with get .root.Values .component }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with mergeOverwrite (dict) ((get .root.Values .component | default dict).nodeSelector | default dict) (.nodeSelector | default dict) }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- if or .root_user .host_root }}
  runAsUser: 0
  {{- else }}
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  {{- end }}
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What every container has: {root, image (a target of the Dockerfile; "all": every service)}. */}}
{{- define "cinquefoil.container" -}}
image: {{ printf "%s%s:%s" .root.Values.image.repository (ternary "" (printf "-%s" .image) (eq .image "all")) (.root.Values.image.tag | default .root.Chart.AppVersion) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError  # `kubectl describe` says why a service did not start
securityContext:
  readOnlyRootFilesystem: true
  {{- if .root_user }}
  capabilities: {drop: [ALL], add: [SYS_ADMIN]}
  {{- else }}
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  {{- end }}
{{- end }}

{{/* Environment, ports, probes, resources and files of a service: {root, component, port, ready (what makes it ready), identities}. */}}
{{- define "cinquefoil.service" -}}
{{- $values := get .root.Values .component -}}
env:
  - {name: MPLCONFIGDIR, value: /tmp}
  {{- with .env }}{{ . | nindent 2 }}{{ end }}
  {{- with $values.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
ports:
  - {name: grpc, containerPort: {{ .port }}}
  - {name: metrics, containerPort: {{ add .port 1000 }}}
  - {name: health, containerPort: 8471}
  {{- if eq .component "router" }}
  - {name: http, containerPort: 8466}
  {{- if include "cinquefoil.tokens" .root }}
  - {name: tokens, containerPort: 8474}
  {{- end }}
  {{- if include "cinquefoil.picker" .root }}
  - {name: picker, containerPort: 8475}
  {{- end }}
  {{- end }}
  {{- if eq .component "batch" }}
  - {name: http, containerPort: 8469}
  {{- end }}
{{- /* Plaintext, at a port that says nothing else: the kubelet's gRPC probe shows no certificate. */}}
startupProbe:
  grpc: {port: 8471, service: liveness}
  initialDelaySeconds: 4  # a probe before the port is open is a warning of each start
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  grpc: {port: 8471, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  grpc: {port: 8471, service: {{ .ready | default "readiness" }}}
  periodSeconds: 5
  timeoutSeconds: 3
resources:
  {{- toYaml $values.resources | nindent 2 }}
  {{- if .claim }}
  claims: [{name: gpus}]
  {{- end }}
volumeMounts:
  {{- include "cinquefoil.mounts" . | nindent 2 }}
  - {name: state, mountPath: /var/lib/cinquefoil/state}
  {{- if .token }}
  - {name: account, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
  {{- end }}
  {{- with $values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Configuration and certificates: {root, identities (identity: folder)}. */}}
{{- define "cinquefoil.mounts" -}}
- {name: config, mountPath: /etc/cinquefoil, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tls.enabled }}
{{- range $identity, $folder := .identities }}
- {name: tls-{{ $identity }}, mountPath: /var/lib/cinquefoil/pki/{{ $folder }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/* The token of a ServiceAccount, as the API server's clients expect it. */}}
{{- define "cinquefoil.account" -}}
- name: account
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{- define "cinquefoil.volumes" -}}
{{- if .root.Values.planner.kubernetes.models }}
- name: config  # one folder, so that both change at once
  projected:
    sources:
      - configMap: {name: {{ include "cinquefoil.fullname" .root }}-config}
      - configMap: {name: {{ include "cinquefoil.fullname" .root }}-models, optional: true}
{{- else }}
- {name: config, configMap: {name: {{ include "cinquefoil.fullname" .root }}-config}}
{{- end }}
- {name: tmp, emptyDir: {}}
{{- if .root.Values.tls.enabled }}
{{- range $identity, $_ := .identities }}
- name: tls-{{ $identity }}
  secret:
    secretName: {{ get $.root.Values.tls.existingSecrets $identity | default (printf "%s-%s-tls" (include "cinquefoil.fullname" $.root) $identity) }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with (get .root.Values .component | default dict).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A Service in front of a component: {root, component, port}. */}}
{{- define "cinquefoil.ports" -}}
- {name: grpc, port: {{ .port }}, targetPort: grpc}
- {name: metrics, port: {{ add .port 1000 }}, targetPort: metrics}
{{- if eq .component "router" }}
- {name: http, port: 8466, targetPort: http}
{{- if and (include "cinquefoil.tokens" .root) (not .root.Values.front.enabled) }}
- {name: tokens, port: 8474, targetPort: tokens}
{{- end }}
{{- if include "cinquefoil.picker" .root }}
- {name: picker, port: 8475, targetPort: picker, appProtocol: http2}
{{- end }}
{{- end }}
{{- if eq .component "batch" }}
- {name: http, port: 8469, targetPort: http}
{{- end }}
{{- end }}
