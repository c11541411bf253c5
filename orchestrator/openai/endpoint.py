"""Where a server answers and the key that it asks for, as one value: whoever has the address has the key."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Endpoint:
    """`url` may end with `/v1`. As text it is its address only: the key shows in no log, error or report.

    key_from: where a person gives the key, for the sentence that says that it was refused; '' when nobody can.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    key_from: str = ""

    def __str__(self) -> str:
        return self.url

    @property
    def root(self) -> str:
        """The address at which the paths of the server's own calls start."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def endpoint_of(server: Endpoint | str) -> Endpoint:
    """A bare address is a server that asks for no key."""
    return server if isinstance(server, Endpoint) else Endpoint(server)
