"""How a release is started, and pure ways to derive one launch from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from orchestrator.remote.services import Definition, Override


class Launch(BaseModel):
    """Command, environment (no secrets) and folder of a service; env_files, filled_in: as for Definition."""

    model_config = ConfigDict(frozen=True)

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    unset_env: tuple[str, ...] = ()
    cwd: str | None = None
    user: str | None = None
    env_files: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()

    @classmethod
    def of(cls, definition: Definition) -> Launch:
        return cls(
            argv=definition.argv, env=dict(definition.env), cwd=definition.cwd, user=definition.user,
            env_files=definition.env_files, filled_in=definition.filled_in,
        )  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What makes this launch another one; a launch without files keeps the identity that older releases have."""
        return self.model_dump(exclude={name for name in ("env_files", "filled_in") if not getattr(self, name)})

    def override(self, release_id: str, secret_env: Mapping[str, str]) -> Override:
        return Override(
            argv=self.argv,
            env=self.env,
            secret_env=secret_env,
            unset_env=self.unset_env,
            filled_in=self.filled_in,
            cwd=self.cwd,
            release=release_id,
        )


def in_environment(launch: Launch, source_prefix: str, clone_prefix: str) -> Launch:
    """The same launch with every path of one environment replaced by the clone's."""

    def moved(text: str) -> str:
        return ":".join(
            clone_prefix + part[len(source_prefix) :]
            if part == source_prefix or part.startswith(source_prefix + "/")
            else part
            for part in text.split(":")
        )

    return launch.model_copy(
        update={"argv": tuple(moved(word) for word in launch.argv), "env": {k: moved(v) for k, v in launch.env.items()}}
    )


def with_flags(argv: Sequence[str], values: Mapping[str, str | None], remove: Sequence[str] = ()) -> tuple[str, ...]:
    """argv with `--flag value` pairs set (None: a flag without value), each once, and others removed.

    `--flag value` and `--flag=value` are both understood; what stands where is otherwise kept.
    """
    gone = {*values, *remove}
    kept: list[str] = []
    skip_values = False
    for word in argv:
        if word.startswith("--"):
            skip_values = word.split("=", 1)[0] in gone
            if skip_values:
                skip_values = "=" not in word
                continue
        elif skip_values:
            continue
        kept.append(word)
    for flag, value in values.items():
        kept += [flag] if value is None else [flag, value]
    return tuple(kept)


def flag_value(argv: Sequence[str], flag: str) -> str | None:
    """The last value of `--flag value` or `--flag=value`; '' for a flag without value, None if it is absent."""
    found: str | None = None
    for here, following in zip(argv, (*argv, "--")[1:], strict=True):
        if here == flag:
            found = "" if following.startswith("--") else following
        elif here.startswith(flag + "="):
            found = here[len(flag) + 1 :]
    return found
