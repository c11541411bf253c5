"""The inventory that `orchestrate init` writes: every key, explained; the remote host is commented out."""

EXAMPLE_INVENTORY = """\
# hosts.yaml: which hosts there are and what they serve.
# Secrets are references (env:NAME, file:PATH, cmd:COMMAND), never values. Unknown keys are errors.
defaults: {port: 22, host_key: strict, connect_timeout_s: 10}

hosts:
  # This machine behind a loopback SSH server: real SGLang on CPU with a small trained pair. It is not systemd.
  local: {transport: embedded, service_driver: process, engine: sglang-cpu, model: tiny-hybrid}

  # A GPU host; take the comment marks away and change the values.
  # pro6000:
  #   address: 10.0.0.20            # name, address, or an alias of ~/.ssh/config
  #   user: deploy
  #   jump: bastion                 # ProxyJump
  #   sudo: {method: nopasswd}      # nopasswd | askpass (with password: env:SUDO_PASSWORD) | none
  #   root: /opt/ddtree             # releases are built below this folder; nothing else is written but unit files
  #   service:
  #     {driver: systemd, unit: sglang.service, port: 30000, canary_port: 30001, args: [--mem-fraction-static, "0.85"]}
  #     # stand_in: auto | always | never, drain_timeout_s: 120: an engine answers while the unit restarts (docs/operators.md)
  #   container: {kind: proxmox-ct, id: 200}   # commands run through `pct exec` on the Proxmox host
  #   gpus: {count: 8, arch: sm_120, tp: 1, canary: [7]}
  #   replicas: 8                   # one per TP group: sglang-0.service on 30000, sglang-1.service on 30001, …
  #   router: {enabled: true, port: 8000, unit: sglang-router.service}   # SGLang's own, which knows every replica
  #   notify: {webhook: "env:DEPLOY_WEBHOOK"}  # or command: [...]; called when a run ends
  #   model: {target: /models/Qwen3.6-27B, draft: /models/Qwen3.6-27B-DFlash, block: 16}
  #   ddtree: {nodes: 64, adaptive: true}      # nodes = B, without the root; the verify width is B + 1
  #   secrets: {api_key: "env:SGLANG_API_KEY"}

# groups: {prod: [pro6000]}
"""
