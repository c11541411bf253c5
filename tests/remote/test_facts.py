"""Processes and environments are found from the running process, never from what lies around."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.remote.processes import listening_on, matching, processes
from orchestrator.remote.venvs import environment_of_process, environment_of_python
from orchestrator.transport.ssh import SshTransport

MakeVenv = Callable[..., Path]


@pytest.fixture
def launch() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **options: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_listener_is_found_by_its_port_with_its_facts(transport: SshTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (found,) = listening_on(transport, server.getsockname()[1], environ=True)
    assert found.pid == os.getpid()
    assert found.cwd == os.getcwd()
    assert found.environ["PATH"] == os.environ["PATH"]
    assert found.described.startswith(f"pid {os.getpid()} of ")


def test_processes_that_are_gone_are_left_out(transport: SshTransport) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert [one.pid for one in processes(transport, [os.getpid(), gone.pid])] == [os.getpid()]


def test_processes_are_found_by_command_line(transport: SshTransport, launch: Callable[..., object]) -> None:
    process = launch("sh", "-c", "echo up; sleep 3600 # marker-of-this-test")
    assert process.pid in [one.pid for one in matching(transport, "marker-of-this-tes[t]")]  # type: ignore[attr-defined]


def test_the_environment_is_the_one_of_the_process_not_the_first_on_disk(
    transport: SshTransport, make_venv: MakeVenv, launch: Callable[..., subprocess.Popen[bytes]]
) -> None:
    make_venv("decoy")
    real = make_venv("real")
    process = launch(str(real / "bin" / "python"), "-m", "sglang.serve", cwd="/")
    found = environment_of_process(transport, process.pid)
    assert (found.prefix, found.kind, found.package_kind) == (str(real), "venv", "site-packages")
    assert found.package_path.startswith(str(real))


def test_a_source_checkout_in_pythonpath_wins_and_is_reported_as_such(
    transport: SshTransport, make_venv: MakeVenv, launch: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    venv, checkout = make_venv("venv"), tmp_path / "checkout"
    (checkout / "sglang").mkdir(parents=True)
    (checkout / "sglang" / "__init__.py").write_text("")
    (checkout / "sglang" / "serve.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    process = launch(str(venv / "bin" / "python"), "-m", "sglang.serve", env=env, cwd="/")
    found = environment_of_process(transport, process.pid)
    assert (found.package_path, found.package_kind) == (str(checkout / "sglang"), "source")


def test_an_editable_install_is_told_apart(transport: SshTransport, make_venv: MakeVenv, tmp_path: Path) -> None:
    venv, checkout = make_venv("venv", package=False), tmp_path / "checkout"
    (checkout / "sglang").mkdir(parents=True)
    (checkout / "sglang" / "__init__.py").write_text("")
    site = next((venv / "lib").glob("python3*")) / "site-packages"
    (site / "editable.pth").write_text(f"{checkout}\n")
    info = site / "sglang-0.5.20.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.20\n")
    (info / "direct_url.json").write_text(f'{{"url": "file://{checkout}", "dir_info": {{"editable": true}}}}')
    found = environment_of_python(transport, str(venv / "bin" / "python"))
    assert found is not None
    assert (found.package_kind, found.package_version) == ("editable", "0.5.20")


def test_a_process_without_the_package_is_an_error_that_names_what_was_tried(
    transport: SshTransport, make_venv: MakeVenv, launch: Callable[..., subprocess.Popen[bytes]]
) -> None:
    bare = make_venv("bare", package=False)
    process = launch(
        str(bare / "bin" / "python"), "-c", "import time; print('up', flush=True); time.sleep(999)", cwd="/"
    )
    with pytest.raises(OrchestrateError, match=r"imports sglang.*no sglang"):
        environment_of_process(transport, process.pid)


def test_a_shim_with_a_changed_title_is_found_through_what_it_has_mapped(
    transport: SshTransport, make_venv: MakeVenv, launch: Callable[..., subprocess.Popen[bytes]]
) -> None:
    venv = make_venv("titled")
    site = next((venv / "lib").glob("python3*")) / "site-packages"
    library = next(Path(sys.base_prefix, "lib").glob("python3*/lib-dynload/_json*.so"))
    (site / "native").mkdir()
    (site / "native" / library.name).write_bytes(library.read_bytes())
    code = (
        f"import mmap, time; f = open({str(site / 'native' / library.name)!r}, 'rb'); "
        "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); print('up', flush=True); time.sleep(999)"
    )
    # argv[0] says nothing of the interpreter, as after setproctitle
    process = launch("sglang::server", "-c", code, executable=str(venv / "bin" / "python"), cwd="/")
    assert environment_of_process(transport, process.pid).prefix == str(venv)
