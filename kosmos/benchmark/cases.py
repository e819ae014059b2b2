"""What is measured: cases, and the sets of cases that have a name."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from kosmos.errors import KosmosArgumentError, KosmosShapeError

DEFAULT_ORDER = {"all_gather_matmul": "local_first", "matmul_reduce_scatter": "band"}
SHORT = {"all_gather_matmul": "AG", "matmul_reduce_scatter": "RS"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}

CREWS = (2, 3, 4, 6, 8, 10)
"""Fixed crews that are swept for the best and the worst, of 33 workgroups on an H200 with four ranks."""


@dataclass(frozen=True)
class Case:
    """One op with one shape, and the variants of it that are measured.

    m, n, k: the GEMM that each rank runs, after the gather or before the scatter. The default policy in the default
    order is always measured; policies ("fixed:4", "one_way:2", ...) and orders come on top, every policy in every
    order. crews: fixed crews that are swept beside them. link_gbps: the rate to which the links are paced, in GB/s.
    workgroups: of a rank, by default its share of the GPU. set: the set that the case belongs to; "" for one that was
    asked for by hand, of which nothing is left out.
    """

    op: str
    m: int
    n: int
    k: int
    ranks: int = 4
    dtype: str = "bf16"
    policies: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    crews: tuple[int, ...] = CREWS
    link_gbps: float | None = None
    workgroups: int | None = None
    name: str = ""
    set: str = ""

    def __post_init__(self) -> None:
        from kosmos.schedule import Policy

        for field in ("policies", "orders", "crews"):
            value = getattr(self, field)
            if isinstance(value, str) or not hasattr(value, "__iter__"):
                raise KosmosArgumentError(f"{field}={value!r} must be several, such as a tuple")
            object.__setattr__(self, field, tuple(value))
        if self.op not in SHORT:
            raise KosmosArgumentError(f"op={self.op!r} is unknown; allowed are {', '.join(SHORT)}")
        for field in ("m", "n", "k", "ranks", "workgroups"):
            value = getattr(self, field)
            if field == "workgroups" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise KosmosArgumentError(f"{field}={value!r} must be a whole number, 1 or more")
        if self.m % self.ranks:
            raise KosmosShapeError(f"m={self.m} must divide by ranks={self.ranks}")
        if self.dtype not in DTYPES:
            raise KosmosArgumentError(f"dtype={self.dtype!r} is unknown; allowed are {', '.join(DTYPES)}")
        for policy in self.policies:
            Policy.parse(policy)
        for order in self.orders:
            if not isinstance(order, str):
                raise KosmosArgumentError(f"order={order!r} must be the name of an order")
        for crew in self.crews:
            if isinstance(crew, bool) or not isinstance(crew, int) or crew < 1:
                raise KosmosArgumentError(f"crews={self.crews!r} must be whole numbers, 1 or more")
        if self.link_gbps is not None and not 0 < self.link_gbps < math.inf:
            raise KosmosArgumentError(f"link_gbps={self.link_gbps!r} must be a rate in GB/s above 0")
        if not self.name:
            facts = [f"{SHORT[self.op]} {self.m}×{self.n}×{self.k}"]
            if self.ranks != 4:
                facts.append(f"{self.ranks} ranks" if self.ranks > 1 else "one rank")
            if self.dtype != "bf16":
                facts.append(self.dtype)
            if self.link_gbps is not None:
                facts.append(f"{self.link_gbps:g} GB/s links")
            if self.workgroups is not None:
                facts.append(f"{self.workgroups} workgroups")
            object.__setattr__(self, "name", ", ".join(facts))

    @property
    def default_order(self) -> str:
        """The op's own order."""
        return DEFAULT_ORDER[self.op]

    @property
    def base(self) -> str:
        """What the ratios are against: the unfused op; the GEMM alone where nothing is communicated, or where the links
        are paced, which the copies of the unfused op are not."""
        return "unfused" if self.ranks > 1 and self.link_gbps is None else "gemm"

    @property
    def flops(self) -> int:
        """Operations of all ranks."""
        return 2 * self.m * self.n * self.k * self.ranks

    @property
    def link_ms(self) -> float | None:
        """What paced links need for what each of them has to carry; None for links that are not paced."""
        if self.link_gbps is None or self.ranks == 1:
            return None
        columns = self.k if self.op == "all_gather_matmul" else self.n
        return self.m // self.ranks * columns * BYTES[self.dtype] / self.link_gbps / 1e6


def _quick() -> list[Case]:
    return [Case("all_gather_matmul", 8192, 2048, 8192), Case("matmul_reduce_scatter", 8192, 8192, 2048)]


def _one_rank() -> list[Case]:
    shapes = [(8192, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 2048), (8192, 28672, 8192)]
    return [Case("all_gather_matmul", *shape, ranks=1) for shape in shapes]


def _llama() -> list[Case]:
    """The linear layers of Llama-3 as eight tensor-parallel ranks divide them, 8192 tokens, on four virtual ranks."""
    gather, scatter = SHORT
    layers = [
        (gather, "8B QKV", 768, 4096),
        (gather, "70B QKV", 1280, 8192),
        (gather, "405B QKV", 2304, 16384),
        (scatter, "8B proj", 4096, 512),
        (scatter, "70B proj", 8192, 1024),
        (scatter, "405B proj", 16384, 2048),
        (gather, "8B fc1", 3584, 4096),
        (gather, "70B fc1", 7168, 8192),
        (gather, "405B fc1", 13312, 16384),
        (scatter, "8B fc2", 4096, 1792),
        (scatter, "70B fc2", 8192, 3584),
        (scatter, "405B fc2", 16384, 6656),
    ]
    return [Case(op, 8192, n, k, name=f"Llama-3 {layer}", crews=(2, 4, 6, 8)) for op, layer, n, k in layers]


def _orders() -> list[Case]:
    """Where the order matters: under a fixed crew, which nothing makes up for, and under the default policy."""
    other = {"all_gather_matmul": "rank", "matmul_reduce_scatter": "row"}
    return [
        replace(case, policies=("fixed:2", "fixed:3", "fixed:4"), orders=(case.default_order, other[case.op]))
        for case in _quick()
    ]


def _crews() -> list[Case]:
    policies = (*(f"one_way:{crew}" for crew in range(2, 11)), *(f"two_way:{crew}" for crew in (2, 4, 6, 8, 10)))
    return [replace(case, policies=policies, crews=tuple(range(1, 11))) for case in _quick()]


def _paced() -> list[Case]:
    """Bound by the links: nothing is left for a switch to gain."""
    cases = [replace(case, policies=("fixed:4", "one_way:4"), link_gbps=20, name="") for case in _quick()]
    return [*cases, replace(cases[0], link_gbps=10, name="")]


SETS: dict[str, Callable[[], list[Case]]] = {
    "quick": _quick,
    "one_rank": _one_rank,
    "llama": _llama,
    "orders": _orders,
    "crews": _crews,
    "paced": _paced,
}
"""The sets by name: quick, two shapes on four ranks; one_rank, against cuBLAS; llama, twelve tensor-parallel layers;
orders, against each other; crews, fixed and switching ones; paced, slow links."""


def cases_of(name: str) -> list[Case]:
    """The cases of a set, or of all of them."""
    if name != "all" and name not in SETS:
        raise KosmosArgumentError(f"set={name!r} is unknown; allowed are {', '.join(SETS)}, all")
    chosen = SETS if name == "all" else [name]
    return [replace(case, set=one) for one in chosen for case in SETS[one]()]
