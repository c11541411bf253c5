"""hosts.yaml: defaults, short forms, and every refusal with its line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.load import load_inventory, select_host

SSH = "model: {target: /m/t, draft: /m/d}"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    return path


def test_the_projects_own_inventory_has_an_embedded_default_host():
    host = select_host(load_inventory(Path("hosts.yaml")), None)
    assert (host.name, host.transport, host.service.driver, host.engine) == (
        "local",
        "embedded",
        "process",
        "sglang-cpu",
    )


def test_defaults_apply_to_every_host_and_are_overridden_by_it(tmp_path):
    path = write(tmp_path, f"defaults: {{user: a, port: 2222}}\nhosts:\n  x: {{address: h, user: b, {SSH}}}\n")
    host = load_inventory(path).hosts["x"]
    assert (host.user, host.port) == ("b", 2222)


@pytest.mark.parametrize(
    ("text", "line", "field", "problem"),
    [
        (f"hosts:\n  x:\n    adress: h\n    {SSH}\n", 3, "hosts.x.adress", "did you mean 'address'"),
        (
            f"hosts:\n  x:\n    address: h\n    service: {{prot: 1}}\n    {SSH}\n",
            4,
            "hosts.x.service.prot",
            "unknown key",
        ),
        (
            f"hosts:\n  x:\n    address: h\n    service:\n      port: 70000\n    {SSH}\n",
            5,
            "hosts.x.service.port",
            "65535",
        ),
        (f"defaults: {{port: many}}\nhosts:\n  x: {{address: h, {SSH}}}\n", 1, "defaults.port", "integer"),
        ("hosts:\n  x: {transport: embedded, model: tiny-giant}\n", 2, "hosts.x", "tiny-giant"),
        (f"hosts:\n  x: {{{SSH}}}\n", 2, "hosts.x", "address"),
        ("hosts:\n  x: 3\n", 2, "hosts.x", "mapping"),
        (f"hosts:\n  x: {{address: h, {SSH}}}\ngroups: {{prod: [y]}}\n", 3, "groups.prod", "unknown host 'y'"),
        ("hostz: {}\n", 1, "hostz", "did you mean 'hosts'"),
        (f"hosts:\n  x: {{address: h, {SSH}, secrets: {{k: literal}}}}\n", 2, "hosts.x.secrets.k", "pattern"),
        (
            f"hosts:\n  x:\n    address: h\n    {SSH}\n    user: hf_{'a' * 24}\n",
            5,
            "hosts.x.user",
            "looks like a secret",
        ),
        (f"hosts:\n  x: {{address: h, {SSH}, gpus: {{count: 1, tp: 2}}}}\n", 2, "hosts.x.gpus", "tp 2"),
        (
            f"hosts:\n  x: {{address: h, {SSH}, service: {{args: [--api-key, abc123]}}}}\n",
            2,
            "hosts.x.service.args",
            "--api-key",
        ),
        (f"hosts:\n  x: {{address: h, {SSH}, ddtree: {{nodes: 2000}}}}\n", 2, "hosts.x.ddtree.nodes", "1024"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_line_and_field(tmp_path, text, line, field, problem):
    with pytest.raises(UsageError) as caught:
        load_inventory(write(tmp_path, text))
    message = str(caught.value)
    assert f"hosts.yaml:{line}: {field}:" in message
    assert problem in message


@pytest.mark.parametrize("text", ["hosts: [", "a: 1\na: 2", "\t", "- 1", "hosts: {}", ""])
def test_broken_yaml_is_a_usage_error_that_names_the_file(tmp_path, text):
    with pytest.raises(UsageError, match=r"hosts\.yaml"):
        load_inventory(write(tmp_path, text))


@given(st.text(max_size=200))
def test_any_text_gives_an_inventory_or_a_sentence_that_names_the_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("h") / "hosts.yaml"
    path.write_text(text, encoding="utf-8", errors="ignore")
    try:
        assert load_inventory(path).hosts
    except UsageError as error:
        assert "hosts.yaml" in str(error)


def replicated(**changes: object) -> HostConfig:
    fields: dict[str, object] = {
        "name": "h", "address": "10.0.0.1", "model": {"target": "/t", "draft": "/d"}, "replicas": 3,
        "router": {"enabled": True, "port": 8000},
    }  # fmt: skip
    return HostConfig.model_validate({**fields, **changes})


def test_replicas_have_units_and_ports_of_their_own_and_share_the_side_port() -> None:
    config = replicated()
    units = [config.of_replica(number).service for number in range(3)]
    assert [one.unit for one in units] == ["sglang-0.service", "sglang-1.service", "sglang-2.service"]
    assert [one.port for one in units] == [30000, 30001, 30002]
    assert {config.of_replica(number).side_port for number in range(3)} == {30003}
    template = replicated(service={"unit": "sglang@.service", "port": 31000})
    assert template.of_replica(2).service.unit == "sglang@2.service"
    single = replicated(replicas=1, router={})
    assert single.of_replica(0) is single
    assert single.side_port == 30001


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"router": {}}, "rolled behind a router"),
        ({"replicas": 1}, "at least two replicas"),
        ({"service": {"port": 30000, "canary_port": 30002}}, "replicas' ports"),
        ({"router": {"enabled": True, "port": 30001}}, "router.port must differ"),
    ],
)
def test_replicas_that_cannot_be_rolled_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replicated(**changes)
