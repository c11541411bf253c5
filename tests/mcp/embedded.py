"""An embedded host whose engine is a stand-in: real SSH, releases, units and inspection, without minutes of set-up."""

from __future__ import annotations

from pathlib import Path

from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.load import load_inventory, select_host
from orchestrator.hosts.readiness import wait_ready
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.found import find_service
from orchestrator.release.launch import with_flags
from orchestrator.remote.services import ServiceUnit
from tests.inspect.conftest import make_package, make_venv
from tests.ports import free_ports

HOST = "box"
TREE = "ddtree-0123456789ab"
WIDTH = 16
MODELS = Path(__file__).parents[2] / "engine" / "models" / "tiny-hybrid"
INVENTORY = """\
hosts:
  {host}:
    transport: embedded
    model: {{target: {models}/target, draft: {models}/draft, block: 16}}
    service: {{driver: process, port: {port}, stop_timeout_s: 5, start_timeout_s: 60}}
"""
SERVER = '''"""Answers as SGLang does, with the algorithm and width of its own command line."""
import http.server, json, sys

def flag(name, other=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else other

INFO = {
    "version": "0.5.20", "speculative_algorithm": flag("--speculative-algorithm"),
    "speculative_num_draft_tokens": int(flag("--speculative-num-draft-tokens", "16")), "model_path": flag("--model-path"),
}

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        known = {"/server_info": INFO, "/health": {}, "/health_generate": {}, "/v1/models": {"data": [{"id": "standin"}]}}
        self.answer(known.get(self.path))

    def do_POST(self):
        wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = wish.get("sampling_params", {}).get("max_new_tokens", 16)
        meta = {"completion_tokens": count, "prompt_tokens": 4, "spec_verify_ct": count // 2, "finish_reason": {"type": "length"}}
        self.answer({"text": "x" * count, "output_ids": list(range(count)), "meta_info": meta})

    def answer(self, body):
        text = json.dumps(body or {}).encode()
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(flag("--port"))), Handler).serve_forever()
'''


def make_host(home: Path) -> HostConfig:
    """A host in `home` that serves a release with DDTREE, made from a known-good linear service."""
    port = free_ports(4)
    inventory = home / "hosts.yaml"
    inventory.write_text(INVENTORY.format(host=HOST, models=MODELS, port=port), encoding="utf-8")
    config = select_host(load_inventory(inventory), HOST)
    python, site = make_venv(home / "engine")
    (make_package(site, "0.5.20") / "launch_server.py").write_text(SERVER)
    with open_session(config, home) as session:
        argv = (
            str(python), "-m", "sglang.launch_server", "--model-path", f"{MODELS}/target",
            "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", f"{MODELS}/draft",
            "--port", str(port),
        )  # fmt: skip
        session.services.install(ServiceUnit(session.unit, argv, stop_timeout_s=5))
        session.services.start(session.unit)
        _adopt(session)
    return config


def _adopt(session: HostSession) -> None:
    _wait(session)
    found = find_service(session.releases, session.services, session.unit, session.config.service.port)
    session.releases.mark_known_good(found.id, {"tok_s": 63.6})
    flags = {"--speculative-algorithm": "DDTREE", "--speculative-num-draft-tokens": str(WIDTH)}
    launch = found.launch.model_copy(update={"argv": with_flags(found.launch.argv, flags)})
    tree = found.model_copy(update={"id": TREE, "kind": "ddtree", "launch": launch, "source_release": found.id})
    session.releases.write(tree)
    session.activation().apply_definition(tree)
    session.services.restart(session.unit)
    session.releases.point_current(tree.id)
    _wait(session)


def _wait(session: HostSession) -> None:
    service = session.config.service
    wait_ready(session, session.unit, service.port, service.start_timeout_s, lambda text, done, total: None)
