"""Offline bundles: parts of a given size, every damage named, and an installation where there is no network at all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.hosts.session import HostSession
from orchestrator.release import build
from orchestrator.release.bundle import Bundle, opened, read_bundle, write_bundle
from orchestrator.release.found import find_service
from orchestrator.release.lacking import Target, download_lacking
from orchestrator.release.wheels import build_wheel

TARGET = {"python": "3.11", "machine": "x86_64", "glibc": "2.36"}


@pytest.fixture(scope="module")
def helper_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that a host lacks."""
    source = tmp_path_factory.mktemp("helper") / "helper_for_tests"
    (source / "helper_for_tests").mkdir(parents=True)
    (source / "helper_for_tests" / "__init__.py").write_text("ANSWER = 42\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=65"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "helper-for-tests"\nversion = "3.2"\n[tool.setuptools]\npackages = ["helper_for_tests"]\n'
    )
    return build_wheel(source, tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def made(tmp_path: Path, plugin_wheel: Path, helper_wheel: Path) -> Bundle:
    return write_bundle(tmp_path / "bundle", [helper_wheel], plugin_wheel, TARGET, 3000)


def test_parts_have_the_size_that_was_asked_for(made: Bundle) -> None:
    assert len(made.parts) > 1
    assert all(part.bytes == 3000 for part in made.parts[:-1])
    assert 0 < made.parts[-1].bytes <= 3000
    assert read_bundle(made.folder) == made
    assert [row["name"] for row in made.to_json()["wheels"]] == ["helper-for-tests", "plugin-for-tests"]


def test_a_copied_bundle_opens_with_every_wheel_as_it_was(made: Bundle, helper_wheel: Path, tmp_path: Path) -> None:
    moved = shutil.move(made.folder, tmp_path / "elsewhere")
    with opened(Path(moved)) as (bundle, wheels):
        assert (wheels / helper_wheel.name).read_bytes() == helper_wheel.read_bytes()
        assert sorted(path.name for path in wheels.iterdir()) == [one.file for one in bundle.wheels]


@settings(max_examples=25, deadline=None)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed_and_its_part_named(
    position: int, bit: int, plugin_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = write_bundle(tmp_path_factory.mktemp("flip") / "b", [], plugin_wheel, TARGET, 2000)
    part = made.parts[position % len(made.parts)]
    path = made.folder / part.file
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(OrchestrateError, match=f"{part.file} of the bundle is damaged"), opened(made.folder):
        pass


def test_a_missing_and_a_cut_part_are_named(made: Bundle) -> None:
    last = made.folder / made.parts[-1].file
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with (
        pytest.raises(OrchestrateError, match=rf"{last.name} of the bundle has {len(whole) - 1} bytes"),
        opened(made.folder),
    ):
        pass
    last.unlink()
    with pytest.raises(OrchestrateError, match=f"{last.name} of the bundle is missing"), opened(made.folder):
        pass


def test_what_is_no_bundle_is_refused(tmp_path: Path, plugin_wheel: Path) -> None:
    with pytest.raises(UsageError, match="holds no bundle"):
        read_bundle(tmp_path)
    (tmp_path / "something").write_text("here")
    with pytest.raises(UsageError, match="is not empty"):
        write_bundle(tmp_path, [], plugin_wheel, TARGET, 1000)


def test_it_installs_where_there_is_no_network(made: Bundle, tmp_path: Path) -> None:
    """A namespace without any interface but loopback, and that one down."""
    site = tmp_path / "site"
    with opened(made.folder) as (bundle, wheels):
        names = [str(wheels / one.file) for one in bundle.wheels]
        offline = ["unshare", "--net", "--map-root-user"]
        dead = "import socket; socket.create_connection(('127.0.0.1', 9), 2)"
        refused = subprocess.run([*offline, sys.executable, "-c", dead], capture_output=True, text=True, check=False)
        assert "unreachable" in refused.stderr
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--target",
            str(site),
            *names,
        ]
        subprocess.run([*offline, *install], check=True)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import helper_for_tests; print(helper_for_tests.ANSWER)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "42\n"


def test_a_release_gets_the_plugin_and_what_else_the_bundle_holds(session: HostSession, made: Bundle) -> None:
    source = find_service(session.releases, session.services, session.unit, session.config.service.port)
    with opened(made.folder) as (bundle, wheels):
        plugin = wheels / bundle.plugin
        more = tuple(path for path in sorted(wheels.iterdir()) if path != plugin)
        plan = build.BuildPlan(source, source.launch, plugin, more, plugin_module="test_plugin")
        release = build.build_release(session.releases, plan, lambda *_: None)
        assert build.release_id(build.BuildPlan(source, source.launch, plugin)) != release.id
    python = session.releases.layout.venv(release.id) + "/bin/python"
    done = session.transport.run([python, "-c", "import helper_for_tests as h; print(h.ANSWER)"], check=True)
    assert done.stdout == "42\n"
    absent = session.transport.run([source.environment.python, "-c", "import helper_for_tests"])
    assert not absent.ok  # the environment that serves never gets it


def test_only_what_the_host_lacks_is_gathered(tmp_path: Path) -> None:
    """Needs a package index, as building a bundle does."""
    bare = Target("3.11", "x86_64", "2.36", {})
    (tmp_path / "bare").mkdir()
    (found,) = download_lacking(["idna>=3"], bare, tmp_path / "bare")
    version = found.name.split("-")[1]
    (tmp_path / "has").mkdir()
    assert download_lacking(["idna>=3"], Target("3.11", "x86_64", "2.36", {"idna": version}), tmp_path / "has") == []
    with pytest.raises(OrchestrateError, match="could not gather"):
        download_lacking(["idna==0.0.99"], bare, tmp_path / "bare")
