"""Policies: which workgroups start in which role, and which may switch."""

import math
from dataclasses import dataclass

from kosmos.errors import KosmosArgumentError
from kosmos.schedule.queues import Queues

KINDS = ("fixed", "planned", "one_way", "two_way")


@dataclass(frozen=True)
class Policy:
    """Who communicates. The first `crew` workgroups of each rank start in the communicating role (mover or reducer),
    the others as builders.

    fixed: nobody switches. planned: fixed, with a crew that a cost model picks before the call. one_way: who runs out
    of producing work joins the consumers. two_way: besides, a workgroup that would consume but finds nothing ready
    produces one item meanwhile.
    """

    kind: str
    crew: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise KosmosArgumentError(f"policy kind {self.kind!r} is unknown; allowed are {', '.join(KINDS)}")
        if self.kind == "planned":
            if self.crew is not None:
                raise KosmosArgumentError(f"policy planned picks its own crew; crew={self.crew!r} is not allowed")
        elif isinstance(self.crew, bool) or not isinstance(self.crew, int) or self.crew < 0:
            raise KosmosArgumentError(f"crew={self.crew!r} must be a whole number of workgroups, 0 or more")

    @staticmethod
    def fixed(crew: int) -> "Policy":
        """`crew` workgroups a rank communicate, the others build; nobody switches."""
        return Policy("fixed", crew)

    @staticmethod
    def planned() -> "Policy":
        """A fixed split that a cost model picks before the call."""
        return Policy("planned")

    @staticmethod
    def one_way(crew: int) -> "Policy":
        """Start with `crew`; producers become consumers when their queue is empty."""
        return Policy("one_way", crew)

    @staticmethod
    def two_way(crew: int) -> "Policy":
        """As one_way; besides, would-be consumers produce while nothing is ready for them."""
        return Policy("two_way", crew)

    @staticmethod
    def parse(policy: "Policy | str") -> "Policy":
        """A Policy from itself or from text: "fixed:8", "planned", "one_way:4", "two_way:4"."""
        if isinstance(policy, Policy):
            return policy
        kind, colon, crew = policy.partition(":") if isinstance(policy, str) else (policy, "", "")
        if kind == "planned" and not colon:
            return Policy.planned()
        if kind in KINDS and kind != "planned" and crew.isdecimal() and len(crew) < 10:
            return Policy(kind, int(crew))
        raise KosmosArgumentError(
            f"policy={policy!r} is unknown; allowed are 'fixed:CREW', 'planned', 'one_way:CREW', 'two_way:CREW' "
            "or a kosmos.Policy"
        )

    @staticmethod
    def default(queues: Queues, workgroups: int, cost_ns: dict[str, float]) -> "Policy":
        """One-way. Movers, whom builders wait for, start as their share of the work, rounded up; reducers, whom
        builders join in the end, as a little less than it; both are a sixteenth at least. cost_ns: as in `settle`.
        """
        share = cost_ns[queues.crew_role] / sum(cost_ns.values()) * workgroups
        if queues.crew_role == queues.producer:
            return Policy.one_way(max(1, workgroups // 16, min(math.ceil(share), workgroups - 1)))
        # 0.96: what the best crews of an H200 speak for, docs/performance.md
        return Policy.one_way(min(max(1, workgroups // 16, round(0.96 * share)), workgroups - 1))

    @property
    def switches(self) -> bool:
        """Whether producers join the consumers when their queue is empty."""
        return self.kind in ("one_way", "two_way")

    def settle(self, queues: Queues, workgroups: int, cost_ns: dict[str, float]) -> "Policy":
        """This policy with its crew settled.

        cost_ns: for each role what all items of one rank would cost a single workgroup. `planned` takes the crew for
        which the slower of the two sides is fastest; the other kinds keep theirs.
        """
        if self.kind != "planned":
            return self
        if not queues.items[queues.crew_role].shape[1]:
            return Policy.fixed(0)
        if workgroups < 2:
            raise KosmosArgumentError(f"policy planned needs at least 2 workgroups a rank; there are {workgroups}")
        communicate, build = cost_ns[queues.crew_role], cost_ns["builder"]
        return Policy.fixed(min(range(1, workgroups), key=lambda c: max(communicate / c, build / (workgroups - c))))

    def __str__(self) -> str:
        return self.kind if self.crew is None else f"{self.kind}:{self.crew}"
