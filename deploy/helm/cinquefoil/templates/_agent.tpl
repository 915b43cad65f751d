{{/* The pod of an agent: {root, node ("": one that joins), settings (of its node, or of `join`)}. */}}
{{- define "cinquefoil.agentPod" -}}
{{- $root := .root -}}
{{- $agent := $root.Values.agent -}}
{{- $mig := eq $agent.access "mig" -}}
{{- $gpus := ne $agent.access "none" -}}
{{- if and $agent.observe (not $gpus) }}{{ fail "agent.observe: needs agent.access read, claim or mig: there are no GPUs to observe" }}{{ end -}}
{{- $folder := "/var/lib/cinquefoil/pki/{service}" -}}
{{- $env := list -}}
{{- if eq $agent.access "claim" }}
  {{- $env = append $env (dict "name" "NVIDIA_DRIVER_CAPABILITIES" "value" "compute,utility") }}
{{- else if $gpus }}
  {{- $env = concat $env (list (dict "name" "NVIDIA_VISIBLE_DEVICES" "value" "all")
    (dict "name" "NVIDIA_DRIVER_CAPABILITIES" "value" "compute,utility")
    (dict "name" "NVIDIA_MIG_MONITOR_DEVICES" "value" "all")) }}
{{- end }}
{{- if $mig }}{{ $env = append $env (dict "name" "NVIDIA_MIG_CONFIG_DEVICES" "value" "all") }}{{ end }}
{{- if not .node }}
  {{- $field := dict "NODE_IP" "status.podIP" "CINQUEFOIL_NODE__NAME" "spec.nodeName"
    "CINQUEFOIL_NODE__TOPOLOGY_ZONE" "metadata.labels['topology.kubernetes.io/zone']" }}
  {{- range $name := list "NODE_IP" "CINQUEFOIL_NODE__NAME" "CINQUEFOIL_NODE__TOPOLOGY_ZONE" }}
    {{- $env = append $env (dict "name" $name "valueFrom" (dict "fieldRef" (dict "fieldPath" (get $field $name)))) }}
  {{- end }}
  {{- $env = append $env (dict "name" "CINQUEFOIL_NODE__ADDRESS" "value" "$(NODE_IP):8463") }}
  {{- if $agent.zoneLabel }}{{ $env = append $env (dict "name" "CINQUEFOIL_NODE__ZONE_FILE" "value" "/run/cinquefoil/zone") }}{{ end }}
  {{- if $root.Values.tls.enabled }}
    {{- range $key, $file := dict "CERTIFICATE_FILE" "tls.crt" "KEY_FILE" "tls.key" "CA_FILE" "ca.crt" }}
      {{- $env = append $env (dict "name" (printf "CINQUEFOIL_TLS__%s" $key) "value" (printf "%s/%s" $folder $file)) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $identities := dict "agent" "agent" "worker" "worker" -}}
{{- with .node }}
  {{- $identities = dict (printf "agent-%s" .) (printf "agent/%s" .) (printf "worker-%s" .) (printf "worker/%s" .) }}
{{- end }}
{{- $of := dict "root" $root "component" "agent" "port" 8463 "node" (.node | default "joined") "identities" $identities
  "root_user" $mig "host_root" $agent.observe "env" (ternary "" (toYaml $env) (empty $env)) "claim" (eq $agent.access "claim")
  "image" ($agent.image | default (ternary "gpuagent-cuda" "gpuagent-cpu" $gpus))
  "nodeSelector" (get $agent.nodeSelectors (.node | default "")) -}}
{{- $label := ternary "" $agent.zoneLabel (not (empty .node)) -}}
{{- if $label }}{{ $_ := set $of "account" (printf "%s-agent" (include "cinquefoil.fullname" $root)) }}{{ end -}}
metadata:
  {{- include "cinquefoil.podMetadata" $of | nindent 2 }}
spec:
  {{- include "cinquefoil.pod" $of | nindent 2 }}
  {{- if $agent.observe }}
  hostPID: true  # the driver knows processes by the machine's numbers
  {{- end }}
  # Leaving, then 10 s to drain, before the kubelet kills.
  terminationGracePeriodSeconds: {{ max 60 (add 20 (ceil (get (.settings | default dict) "leave_timeout_s" | default 30))) }}
  {{- with $agent.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $agent.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if $of.claim }}
  resourceClaims:
    - {name: gpus, resourceClaimTemplateName: {{ include "cinquefoil.fullname" $root }}-gpus}
  {{- end }}
  {{- with $root.Values.models }}
  {{- $folders := list -}}
  {{- if and .hostPath (or .trainDemo .fetch) }}{{ $folders = append $folders "/var/lib/cinquefoil/models" }}{{ end }}
  {{- if $agent.stateHostPath }}{{ $folders = append $folders "/var/lib/cinquefoil/state" }}{{ end }}
  {{- if or $mig $agent.observe }}{{ $folders = list }}{{ end }}
  {{- if or .trainDemo .fetch .initContainers $label $folders }}
  initContainers:
    {{- if $folders }}
    # The kubelet makes a machine's folders for root; `fsGroup` does not count there.
    - name: own-folders
      command: {{ concat (list "chown" "10001:10001") $folders | toJson }}
      {{- $image := include "cinquefoil.container" (dict "root" $root "image" $of.image) | fromYaml }}
      {{- $_ := set $image "securityContext" (dict "readOnlyRootFilesystem" true "runAsUser" 0 "runAsNonRoot" false "allowPrivilegeEscalation" false
        "capabilities" (dict "drop" (list "ALL") "add" (list "CHOWN"))) }}
      {{- toYaml $image | nindent 6 }}
      resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi}}
      volumeMounts:
        {{- range $folders }}
        - {name: {{ base . }}, mountPath: {{ . }}}
        {{- end }}
    {{- end }}
    {{- if $label }}
    - name: read-zone
      args: [gpuagent, zone, --label, {{ $label | quote }}, --file, /run/cinquefoil/zone]
      {{- include "cinquefoil.container" (dict "root" $root "image" $of.image) | nindent 6 }}
      env: [{name: CINQUEFOIL_NODE__NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
      resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}
      volumeMounts:
        - {name: zone, mountPath: /run/cinquefoil}
        - {name: account, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- end }}
    {{- with .initContainers }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- if .trainDemo }}
    - name: train-demo
      args: [demo, --train-only]
      {{- include "cinquefoil.container" (dict "root" $root "image" "all") | nindent 6 }}
      env: [{name: MPLCONFIGDIR, value: /tmp}]
      resources: {{- toYaml $agent.resources | nindent 8 }}
      volumeMounts:
        {{- include "cinquefoil.mounts" (dict "root" $root) | nindent 8 }}
        - {name: models, mountPath: /var/lib/cinquefoil/models}
    {{- end }}
    {{- if .fetch }}
    - name: fetch-models
      args: [models, fetch]
      {{- include "cinquefoil.container" $of | nindent 6 }}
      {{- with .fetchEnv }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 512Mi}}
      volumeMounts:
        {{- include "cinquefoil.mounts" (dict "root" $root) | nindent 8 }}
        - {name: models, mountPath: /var/lib/cinquefoil/models}
    {{- end }}
  {{- end }}
  {{- end }}
  containers:
    - name: agent
      args: {{ ternary (list "gpuagent" "serve" "--node" .node) (list "gpuagent" "serve" "--join") (not (empty .node)) | toJson }}
      {{- include "cinquefoil.container" $of | nindent 6 }}
      {{- include "cinquefoil.service" $of | nindent 6 }}
        - {name: models, mountPath: /var/lib/cinquefoil/models, readOnly: true}
        {{- if $agent.observe }}
        - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
        {{- end }}
        {{- if $label }}
        - {name: zone, mountPath: /run/cinquefoil, readOnly: true}
        {{- end }}
  volumes:
    {{- if $agent.observe }}
    - {name: pod-resources, hostPath: {path: /var/lib/kubelet/pod-resources, type: Directory}}
    {{- end }}
    {{- if $label }}
    - {name: zone, emptyDir: {sizeLimit: 1Mi}}
    - name: account  # of the first container only: the agent and its workers see no token
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 600}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    {{- end }}
    {{- include "cinquefoil.volumes" $of | nindent 4 }}
    {{- with $agent.stateHostPath }}
    - {name: state, hostPath: {path: {{ . }}, type: DirectoryOrCreate}}
    {{- else }}
    - {name: state, emptyDir: {}}
    {{- end }}
    {{- with $root.Values.models }}
    {{- if .existingClaim }}
    - {name: models, persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: {{ not .fetch }}}}
    {{- else if .ociImage }}
    - {name: models, image: {reference: {{ .ociImage }}}}
    {{- else if .hostPath }}
    - {name: models, hostPath: {path: {{ .hostPath }}, type: DirectoryOrCreate}}
    {{- else }}
    - {name: models, emptyDir: {}}
    {{- end }}
    {{- end }}
{{- end }}
