"""The package that lets SGLang run without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sglang_cpu.hook
from harness import ENGINE, source_environment
from sglang_cpu import environment, versions
from sglang_cpu.patches import PATCHES, Patch


def child(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env={**source_environment(), **env},
    )


def test_doctor_finds_every_patch_applied():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "sglang_cpu", "doctor"],
        capture_output=True,
        text=True,
        timeout=600,
        env=source_environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [p for p in PATCHES if versions.sglang_version() in p.versions]
    assert len(re.findall("^patched: ", done.stdout, re.MULTILINE)) == len(expected)


def test_every_patch_says_why_and_names_one_function():
    assert len({(p.module, p.target) for p in PATCHES}) == len(PATCHES)
    assert all(len(p.reason) > 30 for p in PATCHES)


def test_nothing_is_patched_without_the_switch():
    code = "import sys, sglang_cpu; print([type(f).__name__ for f in sys.meta_path])"
    assert "PatchFinder" not in child(code, SGLANG_USE_CPU_ENGINE="0").stdout
    assert "PatchFinder" in child(code.replace("; print", "; sglang_cpu.activate(); print")).stdout


def test_nothing_is_patched_where_a_gpu_is_visible(monkeypatch):
    monkeypatch.setattr(versions.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert versions.cuda_visible()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not versions.cuda_visible()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    before = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", [f for f in before if not isinstance(f, sglang_cpu.hook.PatchFinder)])
    sglang_cpu.activate()
    assert sglang_cpu.hook.finder() is None


@pytest.mark.parametrize("version", ["0.5.16", "0.6.0"])
def test_unknown_sglang_is_refused_in_one_sentence(version, monkeypatch):
    monkeypatch.setattr(versions, "sglang_version", lambda: version)
    sentence = versions.refusal()
    assert sentence is not None
    assert version in sentence
    assert "0.5.20" in sentence
    assert "\n" not in sentence


def test_importing_an_unknown_sglang_says_so(tmp_path: Path):
    info = tmp_path / "sglang-0.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.9.9\n")
    folders = f"{tmp_path}:{ENGINE}"
    done = child("import sglang_cpu; sglang_cpu.activate(); import sglang", PYTHONPATH=folders)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("ImportError: sglang_cpu has patches for sglang 0.5.20")


def test_an_availability_check_does_not_use_up_a_patch(tmp_path, monkeypatch):
    (tmp_path / "patched_module.py").write_text("value = 1\n")
    patch = Patch("patched_module", "value", "a test", lambda module: setattr(module, "value", 2))
    finder = sglang_cpu.hook.PatchFinder([patch])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("patched_module") is not None
    assert finder.applied == []
    assert importlib.import_module("patched_module").value == 2
    assert finder.applied == [patch]


def test_missing_kernels_raise_when_called():
    import sgl_kernel

    with pytest.raises(NotImplementedError, match="no_such_kernel"):
        sgl_kernel.no_such_kernel(1)


def test_callers_arguments_win():
    args = environment.with_defaults(["--model-path", "m", "--max-total-tokens", "64", "--dtype=bfloat16"])
    assert args[-5:] == ["--model-path", "m", "--max-total-tokens", "64", "--dtype=bfloat16"]
    assert args.count("--max-total-tokens") == 1
    assert "float32" not in args
    assert "--disable-overlap-schedule" in args


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-nodeps.txt"])
def test_requirements_are_pinned_and_explained(file):
    lines = [line for line in (ENGINE / "sglang_cpu" / file).read_text().splitlines() if not line.startswith("#")]
    assert len(lines) >= 2
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9a-z.]+ +# \S.{8,}", line) for line in lines), lines
