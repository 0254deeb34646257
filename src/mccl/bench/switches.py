"""Which switch of an emulated cluster each host is on, and what joins the switches."""

from __future__ import annotations

from dataclasses import dataclass

from mccl.errors import UsageError

MAX_SWITCHES = 200
MAX_HOSTS_A_SWITCH = 250


@dataclass(frozen=True, slots=True)
class Switches:
    """``hosts`` on ``count`` switches, as evenly as possible.

    ``uplink``: bits a second, each way, between a switch and the rest; 0: unlimited. ``dealt``:
    hosts are numbered across the switches like cards, else switch by switch.

    Raises:
        UsageError: the numbers make no sense.
    """

    hosts: int
    count: int = 1
    uplink: float = 0.0
    dealt: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.count <= min(self.hosts, MAX_SWITCHES):
            raise UsageError(
                f"{self.count} groups of {self.hosts} hosts asked for; expected 1 to "
                f"{min(self.hosts, MAX_SWITCHES)}"
            )
        if self.several and -(-self.hosts // self.count) > MAX_HOSTS_A_SWITCH:
            raise UsageError(
                f"{self.hosts} hosts in {self.count} groups are more than {MAX_HOSTS_A_SWITCH} a "
                "group; ask for more groups"
            )
        if self.uplink and (self.uplink < 1e4 or not self.several):
            raise UsageError(
                f"an uplink of {self.uplink:g} bit/s for {self.count} groups makes no sense: give "
                "two or more groups and 10kbit or more"
            )

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return self.count > 1

    def of(self, host: int) -> int:
        """The host's switch."""
        return host % self.count if self.dealt else host * self.count // self.hosts

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The hosts of each switch, in ascending order."""
        return tuple(
            tuple(host for host in range(self.hosts) if self.of(host) == switch)
            for switch in range(self.count)
        )

    @property
    def title(self) -> str:
        """For captions; empty for one switch."""
        if not self.several:
            return ""
        rate = f", uplinks of {self.uplink / 1e6:g} Mbit/s" if self.uplink else ""
        numbered = "dealt out over them" if self.dealt else "numbered switch by switch"
        return f" on {self.count} switches, {numbered}{rate}"
