"""Commands in unit files: exact words, and variables that only systemd may fill in."""

from __future__ import annotations

from orchestrator.hosts.secrets import secret_words
from orchestrator.release.launch import Launch
from orchestrator.remote import systemd_text


def test_a_variable_of_an_environment_file_stays_a_variable_and_all_other_dollars_are_words() -> None:
    held = ("/bin/serve", "--api-key", "${KEY}", "--name=${HOME}-${KEY}", "$MORE", "costs $$5 or $KEY", "${KNOWN}")
    env = {"KNOWN": "value"}
    argv, names = systemd_text.expanded(held, env), systemd_text.unknown(held, env)
    assert names == ("KEY", "HOME", "MORE")
    assert argv == (
        "/bin/serve", "--api-key", "${KEY}", "--name=${HOME}-${KEY}", "$MORE", "costs $5 or $KEY", "value",
    )  # fmt: skip
    line = systemd_text.command(argv, names)
    assert line == '/bin/serve --api-key "${KEY}" "--name=${HOME}-${KEY}" $MORE "costs $$5 or $$KEY" value'
    assert systemd_text.command(("/bin/sh", "-c", 'echo "${KEY}"')) == '/bin/sh -c "echo \\"$${KEY}\\""'


def test_keys_in_a_definition_are_found_and_variables_are_none() -> None:
    argv = (
        "serve",
        "--api-key",
        "k-1",
        "--hf-token=t-2",
        "--admin-api-key",
        "${ADMIN}",
        "--tokenizer-path",
        "/t",
        "--token",
    )
    assert secret_words(argv, {"HF_TOKEN": "t-3", "TOKENIZERS_PARALLELISM": "false"}) == ["t-3", "k-1", "t-2"]


def test_files_make_another_launch_and_their_absence_keeps_the_identity_of_older_releases() -> None:
    plain = Launch(argv=("serve",))
    assert set(plain.identity()) == {"argv", "env", "unset_env", "cwd", "user"}
    assert plain.model_copy(update={"env_files": ("/etc/engine.env",)}).identity() != plain.identity()
