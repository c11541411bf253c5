"""The systemd driver and the switch of releases on real hosts."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.comeback import Comeback
from orchestrator.release import build
from orchestrator.remote import systemd_text
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport.base import HostUnreachable
from tasks.serving import SideEngine
from tests.hosts_lab import scene
from tests.hosts_lab.conftest import OpenSession
from tests.hosts_lab.lab import LabHost

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def quiet(_text: str, _done: float | None, _total: float | None) -> None:
    """A progress callback that shows nothing."""


def until(condition: Callable[[], object], patience_s: float = 40.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.1)


def served_by(machine: LabHost, prefix: str) -> bool:
    said = scene.whoami(machine)
    return said is not None and said["prefix"] == prefix


def test_a_hand_written_unit_is_read_exactly(machine: LabHost, connect: OpenSession) -> None:
    with connect(machine) as session:
        definition = session.services.definition("sglang.service")
        assert definition is not None
        assert definition.argv[-4:] == ("--algorithm", "LINEAR", "--note", "100% sure; costs $5")
        assert definition.env == {"GREETING": "hello world", "FLAG": "1"}
        assert (definition.user, definition.overridden) == ("deploy", False)
        assert definition.texts == {"/etc/systemd/system/sglang.service": scene.UNIT}
        status = session.services.status("sglang.service")
        assert status.running
        assert session.services.definition("other.service") is None


def test_cut_over_and_back_on_systemd(machine: LabHost, connect: OpenSession, wheel: Path) -> None:
    with connect(machine, secrets={"api_key": "cmd:echo canary-7731-of-the-lab"}) as session:
        source = scene.found(session)
        digest = session.releases.tree_digest("/opt/sglang/venv")
        before = session.services.definition("sglang.service")
        release = build.build_release(session.releases, scene.plan(source, wheel), quiet)
        activation = session.activation()
        switched = activation.switch(release, source, deadline_s=120)
        until(lambda: served_by(machine, session.releases.layout.venv(release.id)))
        said = scene.whoami(machine)
        assert said is not None
        assert (said["greeting"], said["has_key"], said["plugin"]) == ("hello world", True, "1.0")
        assert said["argv"] == ["--port", "30000", "--note", "100% sure; costs $5", "--algorithm", "TREE"]
        units = machine.inside("systemctl list-unit-files --no-legend 'orchestrate-*'")
        assert "orchestrate-deadman.timer" in units
        assert activation.confirm(switched.token)
        assert machine.inside("ls /etc/systemd/system | grep ^orchestrate- || true") == ""
        assert machine.inside(
            "grep -rl canary-7731 /etc /opt /home /var/log /run/systemd 2>/dev/null || true"
        ).split() == ["/opt/ddtree/env/sglang.service.env"]
        assert machine.inside("stat -c %a /opt/ddtree/env/sglang.service.env").strip() == "600"
        back = activation.switch(source, release, deadline_s=120)
        until(lambda: served_by(machine, "/opt/sglang/venv"))
        assert activation.confirm(back.token)
        assert session.services.definition("sglang.service") == before
        assert session.releases.tree_digest("/opt/sglang/venv") == digest
        assert machine.inside("ls /etc/systemd/system/sglang.service.d 2>&1 || true").count("50-orchestrate") == 0


def test_a_key_of_the_units_own_file_reaches_release_and_side_engine_and_no_other_file(
    machine: LabHost, connect: OpenSession, wheel: Path
) -> None:
    """The unit says `--api-key ${ENGINE_KEY}`, and only its EnvironmentFile knows the key."""
    key, note = "canary-4410-of-the-lab", '--note "100%% sure; costs $$5"'
    unit = scene.UNIT.replace(note, f"{note} --api-key ${{ENGINE_KEY}}\nEnvironmentFile=/etc/engine.env")
    machine.inside(f"umask 077; echo ENGINE_KEY={key} > /etc/engine.env")
    machine.inside(f"cat > /etc/systemd/system/sglang.service <<'END'\n{unit}END")
    machine.inside("systemctl daemon-reload && systemctl restart sglang.service")
    with connect(machine) as session:
        source = scene.found(session)
        assert source.launch.argv[-2:] == ("--api-key", "${ENGINE_KEY}")
        release = build.build_release(session.releases, scene.plan(source, wheel), quiet)
        activation = session.activation()
        switched = activation.switch(release, source, deadline_s=120)
        until(lambda: served_by(machine, session.releases.layout.venv(release.id)))
        said = scene.whoami(machine)
        assert said is not None
        assert said["argv"][said["argv"].index("--api-key") + 1] == key
        definition = session.services.definition("sglang.service")
        assert definition is not None
        assert definition.argv == release.launch.argv
        assert activation.confirm(switched.token)
        show = release.launch.model_copy(update={"argv": ("/bin/sh", "-c", "echo $0; exec sleep 999", "${ENGINE_KEY}")})
        engine = SideEngine("beside.service", show, 30001)
        session.services.install(engine.unit(session))
        session.services.start(engine.name)
        until(lambda: key in session.services.logs(engine.name))
        session.services.remove(engine.name)
        held = machine.inside(f"grep -rl {key} /etc /opt /home /run/systemd 2>/dev/null || true").split()
        assert held == ["/etc/engine.env"]


def test_the_host_goes_back_by_itself_when_nobody_confirms(machine: LabHost, connect: OpenSession, wheel: Path) -> None:
    with connect(machine) as session:
        source = scene.found(session)
        release = build.build_release(session.releases, scene.plan(source, wheel), quiet)
        session.activation().switch(release, source, deadline_s=15)
        assert session.releases.current() == release.id
        machine.link(False)  # the operator cannot reach the host any more
        until(lambda: served_by(machine, "/opt/sglang/venv"))
        machine.link(True)
        until(lambda: session.deadman.status().state == "fired")
        assert session.releases.current() == source.id


def test_a_reboot_before_the_confirmation_starts_the_previous_release(
    machine: LabHost, connect: OpenSession, wheel: Path
) -> None:
    with connect(machine) as session:
        source = scene.found(session)
        release = build.build_release(session.releases, scene.plan(source, wheel), quiet)
        session.activation().switch(release, source, deadline_s=3600)
        until(lambda: served_by(machine, session.releases.layout.venv(release.id)))
    machine.power_off()
    machine.up()
    until(lambda: served_by(machine, "/opt/sglang/venv"))
    with connect(machine) as session:
        until(lambda: session.deadman.status().state == "fired")
        assert "restarted" in session.deadman.status().why
        assert session.releases.current() == source.id


ROUTER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        with open("/run/told", "ab") as file: file.write(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(202); self.send_header("Content-Length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def test_a_replica_out_of_its_router_is_put_back_after_the_login_is_gone(
    machine: LabHost, connect: OpenSession
) -> None:
    units = "/etc/systemd/system"
    machine.inside(
        "systemctl disable -q --now sglang.service && "
        f"cp {units}/sglang.service {units}/sglang-0.service && systemctl daemon-reload && systemctl start sglang-0"
    )
    machine.inside(f"systemd-run --quiet --unit=router python3 -c {shlex.quote(ROUTER)}")
    router = {"enabled": True, "port": 8000, "rejoin_after_s": 3}
    with connect(machine, replicas=2, router=router) as session:
        until(lambda: scene.whoami(machine) is not None)
        guard = Comeback(session)
        guard.arm()
        guard.beat()
        name = f"orchestrate-rejoin-{guard.token}.service"
        assert machine.inside(f"systemctl is-active {name}").strip() == "active"
    machine.link(False)
    until(lambda: "30000" in machine.inside("cat /run/told 2>/dev/null || true"))
    until(lambda: machine.inside(f"systemctl list-units --all --no-legend {name}") == "")
    machine.link(True)
    assert machine.inside("ls /opt/ddtree/rejoin").split() == ["lock", "rejoin.py", "result.json"]
    token = guard.token

    def told_when_back() -> bool:
        try:
            with connect(machine, replicas=2, router=router) as session:
                with pytest.raises(OrchestrateError, match="no longer held"):
                    Comeback(session, token).beat()
                return True
        except HostUnreachable:  # the link needs a moment
            return False

    until(told_when_back)


def test_a_unit_of_our_own_fails_loudly_and_leaves_nothing(machine: LabHost, connect: OpenSession) -> None:
    with connect(machine) as session:
        unit = ServiceUnit(
            "orchestrate-try.service", ("/no/such/program",), restart="no", secret_env={"K": 'a"b$c\\d`'}
        )
        session.services.install(unit)
        with pytest.raises(OrchestrateError, match="did not start"):
            session.services.start(unit.name)
        session.services.install(
            ServiceUnit(unit.name, ("/bin/sh", "-c", 'printf "%s\\n" "$K"; exec sleep 999'), secret_env=unit.secret_env)
        )
        session.services.start(unit.name)
        until(lambda: 'a"b$c\\d`' in session.services.logs(unit.name, 5))  # between systemd's own lines
        session.services.remove(unit.name)
        assert session.services.definition(unit.name) is None
        assert machine.inside("ls /opt/ddtree/env").split() == []


def test_without_sudo_user_units_need_linger(machine: LabHost, connect: OpenSession) -> None:
    with (
        connect(machine, sudo={"method": "none"}, root="ddtree") as session,
        pytest.raises(OrchestrateError, match="linger"),
    ):
        session.services.status("own.service")
    machine.inside("loginctl enable-linger deploy")
    with connect(machine, sudo={"method": "none"}, root="ddtree") as session:
        until(lambda: session.transport.run(["test", "-d", "/run/user/1000"]).ok)
        session.services.install(ServiceUnit("own.service", ("/bin/sh", "-c", "echo here; exec sleep 999")))
        session.services.start("own.service")
        status = session.services.status("own.service")
        assert status.running
    with connect(machine, sudo={"method": "none"}, root="ddtree") as session:
        assert session.services.status("own.service").main_pid == status.main_pid
        session.services.remove("own.service")
        assert session.services.definition("own.service") is None


def test_words_and_values_survive_a_unit_file(machine: LabHost, connect: OpenSession) -> None:
    with connect(machine) as session:
        show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VALUE']]))"
        unit = "orchestrate-words.service"

        @settings(max_examples=15, deadline=None)
        @given(words=st.lists(TEXT, max_size=3), value=TEXT)
        def check(words: list[str], value: str) -> None:
            argv = ("/usr/bin/python3", "-X", "utf8", "-c", show, *words)
            session.services.install(ServiceUnit(unit, argv, env={"VALUE": value}, restart="no"))
            definition = session.services.definition(unit)
            assert definition is not None
            assert definition.argv == argv
            assert definition.env == {"VALUE": value}
            assert systemd_text.command(argv) in definition.texts[f"/etc/systemd/system/{unit}"]

        check()
        session.services.remove(unit)
